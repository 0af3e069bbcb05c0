"""The tensors of the paged KV cache: for each layer `[2, block, kv_head, 16, head_dim]`, all keys, then all values.

One of int8 has as many scales beside it, `[2, block, kv_head, 16]`. Memory is a mapping of zeros (a masked key must be
a finite number), used page by page as blocks are.
"""

import math

import torch
from torch import Tensor

from actorlm.checkpoint.description import ModelDescription
from actorlm.config import BLOCK_SIZE
from actorlm.errors import InsufficientMemory
from actorlm.kernels.backend import Backend, Gpu
from actorlm.kernels.layer_cache import LayerCache
from actorlm.kernels.native import Native
from actorlm.kernels.pages import give_back, map_zeros
from actorlm.layers.arena import FLOATS
from actorlm.number_types import vector_bytes

DTYPES = {**FLOATS, "int8": torch.int8}


def kv_cache_bytes(model: ModelDescription, num_blocks: int, kind: str) -> int:
    """The size of a cache of so many blocks, of one of `number_types.SIZES`."""
    return num_blocks * BLOCK_SIZE * model.kv_vectors_per_token * vector_bytes(kind, model.head_dim)


def check_memory(model: ModelDescription, num_blocks: int, weight_size: float, kind: str, available: int) -> None:
    """Raises InsufficientMemory unless a rank's weights of `weight_size` bytes and its cache fit into `available`."""
    weights, cache = math.ceil(model.num_parameters * weight_size), kv_cache_bytes(model, num_blocks, kind)
    if weights + cache > available:
        raise InsufficientMemory(
            f"the weights of {model.name} take {_mib(weights)} and a KV cache of {num_blocks * BLOCK_SIZE} tokens "
            f"{_mib(cache)}, but {_mib(available)} are free; lower --kv-cache-tokens or choose a smaller model"
        )


def allocate(model: ModelDescription, num_blocks: int, kind: str, backend: Backend) -> list[LayerCache]:
    """A cache of zeros, one part a layer. Raises InsufficientMemory if the system refuses the memory.

    It is as the backend's kernels want it: see LayerCache.
    """
    shape = (model.num_layers, 2, num_blocks, model.num_kv_heads, BLOCK_SIZE)
    if isinstance(backend, Gpu):
        return [LayerCache(part) for part in _on_gpu((*shape, model.head_dim), DTYPES[kind], backend)]
    numbers = _zeros((*shape, model.head_dim), DTYPES[kind])
    scales = _zeros(shape, torch.float32) if kind == "int8" else [None] * model.num_layers
    parts = zip(numbers, scales, strict=True)
    return [LayerCache(*part, keys_by_feature=isinstance(backend, Native)) for part in parts]


def empty(caches: list[LayerCache]) -> None:
    """Gives the memory of a whole cache back to the system, until its blocks are used again."""
    give_back(caches[0].all_2bk16H)
    if (scales_2bk16 := caches[0].scales_2bk16) is not None:
        give_back(scales_2bk16)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    size, tokens = torch.Size(shape).numel() * dtype.itemsize, shape[2] * BLOCK_SIZE
    return map_zeros(size, dtype, f"a KV cache of {tokens} tokens; lower --kv-cache-tokens").view(shape)


def _on_gpu(shape: tuple[int, ...], dtype: torch.dtype, gpu: Gpu) -> Tensor:
    assert dtype is not torch.int8, "kernels for GPUs know no cache of int8"
    return torch.zeros(shape, dtype=dtype, device=gpu.device)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
