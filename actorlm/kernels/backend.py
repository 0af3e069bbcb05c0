"""What computes a model: compiled kernels of the CPU (`Native`), Triton's on a GPU (`Gpu`), or plain torch (None).

A launcher is given one of them, and launches its kernel.
"""

from dataclasses import dataclass

import psutil
import torch

from actorlm.errors import ConfigError
from actorlm.kernels.native import Native, choose_level


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. In Triton's interpreter `device` may be the CPU, too."""

    device: torch.device
    multiprocessors: int
    card: str
    """Such as sm_90; see `gpu.tiles`."""

    @classmethod
    def first(cls) -> "Gpu":
        """The first GPU that torch sees. Raises ConfigError if it sees none."""
        if not torch.cuda.is_available():
            raise ConfigError(
                f"--device cuda: torch {torch.__version__} sees no GPU (a build of torch for CPUs, no driver, or"
                " CUDA_VISIBLE_DEVICES); use --device cpu",
                param="device",
            )
        found = torch.cuda.get_device_properties(0)
        return cls(torch.device("cuda", 0), found.multi_processor_count, f"sm_{found.major}{found.minor}")


Backend = Native | Gpu | None


def free_bytes(backend: Backend) -> int:
    """Memory that weights and cache may take, where they lie."""
    if isinstance(backend, Gpu) and backend.device.type == "cuda":
        return int(torch.cuda.mem_get_info(backend.device)[0])
    return int(psutil.virtual_memory().available)


def choose_backend(device: str, kernels: str, threads: int | None) -> Backend:
    """What computes on the `device`, cpu or cuda; on a CPU `kernels` is native, torch, or auto for native if there.

    `threads` are those of native kernels; None stands for torch's own number. Raises ConfigError for what is not there.
    """
    if device == "cuda":
        return Gpu.first()
    level = choose_level(kernels)
    return None if level is None else Native(level, threads or torch.get_num_threads())
