"""Random caches and sequences to attend to."""

import torch

from actorlm.bench.gpu.stage import Machine
from actorlm.kernels.gpu.attention import BLOCK_SIZE, Cache, Sequences


def paged_cache(machine: Machine, blocks: int, *, empty: bool = False) -> Cache:
    """One layer's keys and values."""
    sizes = machine.sizes
    shape = 2, blocks, sizes.kv_heads, BLOCK_SIZE, sizes.head_dim
    made = torch.zeros(shape, device=machine.device) if empty else torch.randn(shape, device=machine.device)
    return Cache(made.to(sizes.dtype))


def sequences_of(machine: Machine, lengths: list[int], counts: list[int]) -> tuple[Cache, Sequences]:
    """Sequences of `lengths` keys, whose last `counts` tokens are a step's; their blocks lie in random order."""

    def numbers(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=machine.device)

    width = -(-max(lengths) // BLOCK_SIZE)
    blocks = torch.randperm(len(lengths) * width, device=machine.device).int().view(len(lengths), width)
    starts = torch.cat((numbers([0]), numbers(counts).cumsum(0).int()))
    return paged_cache(machine, len(lengths) * width), Sequences(blocks, numbers(lengths), starts)
