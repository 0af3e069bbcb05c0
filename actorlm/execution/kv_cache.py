"""The tensors of the paged KV cache: for each layer `[2, block, kv_head, 16, head_dim]`, all keys, then all values.

Memory is one mapping of zeros (a masked key must be a finite number), used page by page as blocks are.
"""

import math

import torch

from actorlm.checkpoint.description import ModelDescription
from actorlm.config import BLOCK_SIZE
from actorlm.errors import InsufficientMemory
from actorlm.kernels.layer_cache import LayerCache
from actorlm.kernels.pages import map_zeros


def kv_cache_bytes(model: ModelDescription, num_blocks: int, dtype: torch.dtype) -> int:
    """The size of a cache of so many blocks."""
    return num_blocks * BLOCK_SIZE * model.kv_bytes_per_token(dtype.itemsize)


def check_memory(
    model: ModelDescription, num_blocks: int, weight_size: float, dtype: torch.dtype, available: int
) -> None:
    """Raises InsufficientMemory unless a rank's weights of `weight_size` bytes and its cache fit into `available`."""
    weights, cache = math.ceil(model.num_parameters * weight_size), kv_cache_bytes(model, num_blocks, dtype)
    if weights + cache > available:
        raise InsufficientMemory(
            f"the weights of {model.name} take {_mib(weights)} and a KV cache of {num_blocks * BLOCK_SIZE} tokens "
            f"{_mib(cache)}, but {_mib(available)} are free; lower --kv-cache-tokens or choose a smaller model"
        )


def allocate(model: ModelDescription, num_blocks: int, dtype: torch.dtype) -> list[LayerCache]:
    """A cache of zeros, one part a layer. Raises InsufficientMemory if the system refuses the memory."""
    size = kv_cache_bytes(model, num_blocks, dtype)
    zeros = map_zeros(size, dtype, f"a KV cache of {num_blocks * BLOCK_SIZE} tokens; lower --kv-cache-tokens")
    shape = (model.num_layers, 2, num_blocks, model.num_kv_heads, BLOCK_SIZE, model.head_dim)
    return [LayerCache(part) for part in zeros.view(shape)]


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
