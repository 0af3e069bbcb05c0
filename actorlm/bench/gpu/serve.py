"""Decoding with a random model, by CUDA graph and launched anew, as a share of what the copy bandwidth allows.

Needs what the runner needs, beside torch and Triton: numpy and msgspec.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from actorlm.bench.gpu.stage import Machine, Row
from actorlm.bench.gpu.timings import copy_bandwidth

if TYPE_CHECKING:
    from actorlm.bench.gpu.random_model import RandomModel

Case = tuple[str, Callable[[], Row]]

CONTEXT = 1024


def decoding(machine: Machine) -> Iterator[Case]:
    """One step, for some numbers of rows."""
    from actorlm.bench.gpu.random_model import RandomModel  # noqa: PLC0415 - needs more than torch and Triton

    context = min(CONTEXT, machine.sizes.contexts[0])
    model = RandomModel(machine, max(machine.sizes.batches), context)
    bandwidth = copy_bandwidth(machine)
    for rows in machine.sizes.batches:
        yield f"decode, {rows} rows at {context}", partial(_step, machine, model, rows, bandwidth)


@torch.inference_mode()
def _step(machine: Machine, model: "RandomModel", rows: int, bandwidth: float) -> Row:
    batch, tables = model.batch(rows)
    eager = machine.clock(lambda: model.eager(batch, tables))
    before: Tensor = model.eager(batch, tables).clone()
    graph = model.graph(rows)
    after = graph.logits(batch, tables)
    error = float((after - before).abs().max() / before.abs().max())
    assert error < 2e-2, f"the graph's logits differ by {error:.3g} of the largest one"
    replayed = machine.clock(lambda: graph.logits(batch, tables))
    read = model.weight_bytes + rows * model.cache_bytes_per_row
    return {
        "graph_ms": replayed.median * 1e3, "eager_ms": eager.median * 1e3, "tokens_per_s": rows / replayed.median,
        "gb_per_s": read / replayed.median / 1e9, "share_of_copy": read / replayed.median / 1e9 / bandwidth,
        "relative_difference": error, "memory_gib": _allocated(machine) / 2**30,
    }  # fmt: skip


def _allocated(machine: Machine) -> int:
    return torch.cuda.max_memory_allocated() if machine.device.type == "cuda" else 0
