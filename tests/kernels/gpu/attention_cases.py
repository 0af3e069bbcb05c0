"""Small steps for attention kernels: sequences at random blocks of a cache in which all other numbers are NaN."""

import torch

from actorlm.kernels.gpu.attention import FP8, Cache, Sequences, Softmax

SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -3.0])
"""For six heads."""

VARIANTS = {
    "plain": Softmax(0.3),
    "capped": Softmax(0.3, soft_cap=0.7),
    "window": Softmax(0.3, window=7),
    "sinks": Softmax(0.3, sinks_n=SINKS),
    "all": Softmax(0.3, soft_cap=0.7, window=21, sinks_n=SINKS),
}

TOLERANCES = {torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Largest error of an output of about 1, which zeros and any missing term exceed by far."""


def step(lengths, queries, *, heads=6, kv_heads=2, size=24, dtype=torch.float32, cached=None, window=None):
    """Queries, cache and sequences. Row s has the last `queries[s]` of its `lengths[s]` keys; of keys that no query's
    window reaches the blocks are gone."""
    torch.manual_seed(len(lengths) + size)
    blocks = [-(-length // 16) for length in lengths]
    order = torch.randperm(sum(blocks) + 3).tolist()
    kv = torch.full((2, len(order), kv_heads, 16, size), torch.nan)
    tables = torch.full((len(lengths), max(blocks) + 1), order.pop(), dtype=torch.int32)
    for row, length in enumerate(lengths):
        for block in range(blocks[row]):
            if window and (block + 1) * 16 <= length - queries[row] + 1 - window:
                continue
            tables[row, block] = at = order.pop()
            kv[:, at, :, : length - block * 16] = torch.randn(2, kv_heads, min(16, length - block * 16), size) * 1.5
    scales = (0.5, 0.25) if cached == FP8 else (1.0, 1.0)
    cache = Cache((kv / torch.tensor(scales).view(2, 1, 1, 1, 1)).to(cached or dtype), *scales)
    starts = torch.tensor([0, *queries]).cumsum(0).to(torch.int32)
    q = torch.randn(sum(queries), heads + 1, size).to(dtype)[:, :heads]
    return q, cache, Sequences(tables, torch.tensor(lengths, dtype=torch.int32), starts)


def agree(out, expected):
    """As near as the type allows."""
    tolerance = TOLERANCES[out.dtype]
    assert expected.abs().max() > 0.5, "numbers so small prove nothing"
    torch.testing.assert_close(out.double(), expected.double(), atol=tolerance, rtol=tolerance)
