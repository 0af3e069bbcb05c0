"""A step's numbers as tensors where the model computes: what the device-independent runner does not know.

Legend: T tokens, S sequences, k key-value heads, W width of the block tables.
"""

from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actorlm.checkpoint.description import ModelDescription
from actorlm.config import BLOCK_SIZE
from actorlm.execution.attention_plan import CacheShape, plan_attention
from actorlm.execution.batch import Batch
from actorlm.execution.tile_plan import plan_tiles
from actorlm.kernels.backend import Backend, Gpu
from actorlm.kernels.native import Native
from actorlm.kernels.paged_attention import AttentionPlan, GpuPlan, Plan, TilePlan

Tables = NDArray[np.int32]


class StepTensors(NamedTuple):
    """What a model gets of a step."""

    token_ids_T: Tensor
    """int64."""
    positions_T: Tensor
    """int64."""
    places: Tensor
    """See `LayerInputs`."""
    plan: Plan


class MakeTensors(Protocol):
    """One for each kind of device."""

    def __call__(self, batch: Batch, tables: Tables) -> StepTensors:
        """Those of a batch, with the block tables of its rows."""


def tensors_for(backend: Backend, part: ModelDescription, shape: CacheShape) -> MakeTensors:
    """What makes them for a rank's `part` of a model, and its cache."""
    return OnGpu(backend) if isinstance(backend, Gpu) else OnCpu(backend, part, shape)


class OnCpu:
    """Tensors share the batch's memory."""

    def __init__(self, native: Native | None, part: ModelDescription, shape: CacheShape) -> None:
        self._native = native
        self._part = part
        self._shape = shape

    def __call__(self, batch: Batch, tables: Tables) -> StepTensors:
        """See `MakeTensors`."""
        ids, positions = torch.from_numpy(batch.token_ids), torch.from_numpy(batch.positions)
        return StepTensors(ids, positions, torch.from_numpy(_places(batch, self._shape)), self._plan(batch, tables))

    def _plan(self, batch: Batch, tables: Tables) -> AttentionPlan | TilePlan:
        if self._native is None:
            return plan_attention(batch.starts, batch.counts, tables, self._shape)
        part = self._part
        return plan_tiles(batch.starts, batch.counts, tables, part.num_heads, part.num_kv_heads, self._native)


def _places(batch: Batch, shape: CacheShape) -> NDArray[np.int64]:
    """[T, 2 k]: which vector of the cache each token's key heads go to, then its value heads."""
    heads = batch.blocks[:, None] * shape.num_kv_heads + np.arange(shape.num_kv_heads)
    keys = heads * BLOCK_SIZE + (batch.positions % BLOCK_SIZE)[:, None]
    return np.concatenate((keys, keys + shape.num_blocks * shape.num_kv_heads * BLOCK_SIZE), axis=1)


def gpu_places(batch: Batch) -> NDArray[np.int64]:
    """[T]: 16 times each token's block, plus its number in it."""
    places: NDArray[np.int64] = batch.blocks * BLOCK_SIZE + batch.positions % BLOCK_SIZE
    return places


class OnGpu:
    """Tensors are copied there."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def __call__(self, batch: Batch, tables: Tables) -> StepTensors:
        """See `MakeTensors`."""
        starts = np.concatenate(([0], np.cumsum(batch.counts)))
        lengths, is_decode = self._int32(batch.starts + batch.counts), bool((batch.counts == 1).all())
        plan = GpuPlan(self._gpu, self._int32(tables), lengths, self._int32(starts), is_decode)
        ids, positions = (torch.from_numpy(each).to(self._gpu.device) for each in (batch.token_ids, batch.positions))
        return StepTensors(ids, positions, self._int32(gpu_places(batch)), plan)

    def _int32(self, numbers: NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers, np.int32)).to(self._gpu.device)
