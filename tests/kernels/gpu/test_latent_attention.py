"""Latent attention against attention of one sequence at a time."""

import pytest
import torch

from actorlm.kernels.gpu.attention import FP8
from actorlm.kernels.gpu.latent_attention import LatentCache, latent_attention, reference
from actorlm.kernels.gpu.merge_splits import Partials
from actorlm.kernels.gpu.tiles import Tile
from gpu.attention_cases import agree

LATENT, ROTATED = 32, 16
TILE = Tile(rows=16, columns=32, warps=4, stages=2)


def step(lengths, *, heads=5, dtype=torch.float32, cached=None):
    """Queries, cache, tables and lengths; all else in the cache is NaN."""
    torch.manual_seed(len(lengths))
    blocks = [-(-length // 16) for length in lengths]
    order = torch.randperm(sum(blocks) + 2).tolist()
    cache = torch.full((len(order), 16, LATENT + ROTATED), torch.nan)
    tables = torch.full((len(lengths), max(blocks) + 1), order.pop(), dtype=torch.int32)
    for row, length in enumerate(lengths):
        for block in range(blocks[row]):
            tables[row, block] = at = order.pop()
            used = min(16, length - block * 16)
            cache[at, :used] = torch.randn(used, LATENT + ROTATED) * 1.5
    scale = 0.5 if cached == FP8 else 1.0
    latent = LatentCache((cache / scale).to(cached or dtype), LATENT, scale)
    q = torch.randn(len(lengths), heads, LATENT + ROTATED).to(dtype)
    return q, latent, tables, torch.tensor(lengths, dtype=torch.int32)


def run(given, splits, scale=0.3):
    partials = Partials.empty(*given[0].shape[:2], splits, LATENT, "cpu")
    partials.means_SnPH.fill_(torch.nan)
    partials.totals_SnP.fill_(torch.nan)
    return latent_attention(*given, scale, TILE, partials)


@pytest.mark.parametrize("splits", [1, 4])
def test_differing_lengths(splits):
    given = step([130, 33, 1])
    agree(run(given, splits), reference(*given, 0.3))


@pytest.mark.parametrize("cached", [None, FP8], ids=["same", "fp8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types(dtype, cached):
    given = step([70, 20], dtype=dtype, cached=cached)
    agree(run(given, 2), reference(*given, 0.3))


def test_more_heads_than_rows_of_a_tile():
    given = step([40], heads=20)
    agree(run(given, 2), reference(*given, 0.3))


def test_the_rotated_part_counts():
    given = step([40])
    given[0][:, :, LATENT:] *= 5
    agree(run(given, 2), reference(*given, 0.3))


def test_rows_of_padding_are_zeros():
    out = run(step([20, 0]), 2)
    assert out[0].abs().max() > 0.1
    assert not out[1].any()


def test_what_the_launcher_refuses():
    q, cache, tables, lengths = step([20])
    with pytest.raises(AssertionError, match="one size"):
        run((q[:, :, 16:].contiguous(), cache, tables, lengths), 1)
    with pytest.raises(AssertionError, match="powers of 2"):
        run((q, LatentCache(cache.latent_b16X, 24), tables, lengths), 1)
