"""Steps in which every row decodes, as CUDA graphs: one for each of some numbers of rows, in buffers that stay.

A step of few rows is hundreds of launches of microseconds. Recorded once, they are one call; what varies is copied to
where the recorded step reads it. A batch is padded to the next number of rows: a row of padding has no keys, is stored
nowhere, and its logits are not looked at.

Legend: B rows of a graph, W width of the block tables, V vocabulary.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actorlm.execution.batch import Batch
from actorlm.execution.step_tensors import gpu_places
from actorlm.kernels.backend import Gpu
from actorlm.kernels.layer_cache import LayerCache
from actorlm.kernels.paged_attention import GpuPlan
from actorlm.models.decoder import Decoder

SIZES = (1, 2, 4, *range(8, 64, 8), *range(64, 257, 16))
"""So that a batch from 16 rows on is padded by a third at most."""

Launches = Callable[[], object]


class Recorder(Protocol):
    """Makes launches repeatable."""

    def record(self, launches: Launches) -> Launches:
        """What launches the same again, on what lies in the same memory then.

        They have been launched before: what a first launch compiles and allocates cannot be recorded. Larger records
        come first.
        """


class CudaRecorder:
    """CUDA graphs, which share one pool of memory: no two of them run at once."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, launches: Launches) -> Launches:
        """See `Recorder`."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            launches()
        replay: Launches = graph.replay
        return replay


class Repeater:
    """In Triton's interpreter, which has no graphs: launches anew."""

    def record(self, launches: Launches) -> Launches:
        """See `Recorder`."""
        return launches


def make_recorder(gpu: Gpu) -> Recorder:
    """What records on this GPU."""
    return CudaRecorder() if gpu.device.type == "cuda" else Repeater()


def sizes_up_to(rows: int) -> list[int]:
    """The numbers of rows that graphs are made for, least first, if a step has `rows` at most."""
    return [size for size in SIZES if size < rows] + [rows]


class DecodeGraph:
    """A graph for B rows, and its buffers."""

    def __init__(
        self, model: Decoder, caches: list[LayerCache], gpu: Gpu, recorder: Recorder, rows: int, width: int
    ) -> None:
        def numbers(*shape: int, dtype: torch.dtype = torch.int32, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=gpu.device)

        self._model = model
        self._caches = caches
        self._ids_B, self._positions_B = numbers(rows, dtype=torch.int64), numbers(rows, dtype=torch.int64)
        self._places_B, self._lengths_B, self._tables_BW = numbers(rows, value=-1), numbers(rows), numbers(rows, width)
        starts_B1 = torch.arange(rows + 1, dtype=torch.int32, device=gpu.device)
        self._plan = GpuPlan(gpu, self._tables_BW, self._lengths_B, starts_B1, is_decode=True)
        self._logits_BV = torch.empty_like(self._computed())
        self._replay = recorder.record(lambda: self._logits_BV.copy_(self._computed()))

    def _computed(self) -> Tensor:
        x_BE = self._model.embed(self._ids_B)
        x_BE = self._model(x_BE, self._positions_B, self._places_B, self._plan, self._caches)
        return self._model.logits(x_BE)

    def logits(self, batch: Batch, tables: NDArray[np.int32]) -> Tensor:
        """Of the batch's rows, at most B; they hold until the next call."""
        rows, width = tables.shape
        self._lengths_B[rows:].zero_()
        self._places_B[rows:].fill_(-1)
        columns = min(width, self._tables_BW.shape[1])
        self._tables_BW[:rows, :columns].copy_(torch.from_numpy(np.ascontiguousarray(tables[:, :columns])))
        for buffer, values in (
            (self._ids_B, batch.token_ids),
            (self._positions_B, batch.positions),
            (self._places_B, gpu_places(batch)),
            (self._lengths_B, batch.positions + 1),
        ):
            buffer[:rows].copy_(torch.from_numpy(values))
        self._replay()
        return self._logits_BV[:rows]


class DecodeGraphs:
    """Graphs of a model for up to `rows` rows, whose sequences have `width` blocks at most."""

    def __init__(
        self, model: Decoder, caches: list[LayerCache], gpu: Gpu, recorder: Recorder, rows: int, width: int
    ) -> None:
        graphs = {size: DecodeGraph(model, caches, gpu, recorder, size, width) for size in reversed(sizes_up_to(rows))}
        self._graphs = dict(sorted(graphs.items()))

    def take(self, batch: Batch) -> bool:
        """Whether every row of a batch decodes."""
        return len(batch.token_ids) == len(batch.slots) == len(batch.sampled_slots)

    def logits(self, batch: Batch, tables: NDArray[np.int32]) -> Tensor:
        """float32 logits [R, V] of such a batch, which hold until the next call; the cache gains its tokens."""
        size = next(size for size in self._graphs if size >= len(batch.slots))
        return self._graphs[size].logits(batch, tables)
