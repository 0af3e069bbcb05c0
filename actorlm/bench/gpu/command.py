"""`python -m actorlm.bench gpu`: checks the kernels, times them, decodes with a random model, and writes one JSON file.

Nothing but Python, torch and Triton is needed, and no network; the stage `serve` needs numpy and msgspec, too.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from actorlm.bench.gpu import check, serve, timings
from actorlm.bench.gpu.clock import CudaClock
from actorlm.bench.gpu.sizes import LARGE
from actorlm.bench.gpu.stage import Machine, Results, Stage, run

STAGES: dict[str, Stage] = {
    "check": check.cases,
    "attention": timings.attention,
    "products": timings.products,
    "serve": serve.decoding,
}


def main(arguments: Sequence[str]) -> int:
    """Runs the stages that are asked for; returns 1 if something failed, 2 if there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m actorlm.bench gpu", description=__doc__)
    parser.add_argument("--stages", default=",".join(STAGES), help=f"some of {', '.join(STAGES)}; default: all")
    parser.add_argument("--budget-s", type=float, default=110.0, help="seconds for each stage; default: %(default)s")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), help="where results go; default: %(default)s")
    options = parser.parse_args(arguments)
    names = options.stages.split(",")
    if unknown := [name for name in names if name not in STAGES]:
        parser.error(f"--stages: {', '.join(unknown)} is none of {', '.join(STAGES)}")
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no GPU", file=sys.stderr)  # noqa: T201 - a command
        return 2
    machine, began = _machine(), time.monotonic()
    results = run({name: STAGES[name] for name in names}, machine, options.budget_s, print)
    options.json.write_text(json.dumps(report(results, time.monotonic() - began), indent=2) + "\n")
    print(f"{len(results.rows)} results, {len(results.failures)} failures: {options.json}")  # noqa: T201
    return 1 if results.failures else 0


def _machine() -> Machine:
    found = torch.cuda.get_device_properties(0)
    card = f"sm_{found.major}{found.minor}"
    return Machine(torch.device("cuda", 0), card, found.multi_processor_count, CudaClock(), LARGE)


def report(results: Results, seconds: float) -> dict[str, Any]:
    """What the file says."""
    import triton  # noqa: PLC0415 - only its version

    has_gpu = torch.cuda.is_available()
    return {
        "card": torch.cuda.get_device_name(0) if has_gpu else platform.processor(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "seconds": seconds,
        "results": results.rows,
        "failures": results.failures,
        "left_out": results.left_out,
    }
