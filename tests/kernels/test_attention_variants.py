"""Attention with scales, soft caps, windows and sinks, and from caches of int8: native and plain torch."""

import numpy as np
import pytest
import torch
from attention_cases import ROWS, attend, columns, native_case, one_by_one, tile_plan
from native_levels import on_all_levels

from actorlm.execution.attention_plan import CacheShape, plan_attention
from actorlm.kernels.attention_variant import PLAIN, AttentionVariant
from actorlm.kernels.native import Native, runnable_levels
from actorlm.kernels.paged_attention import TilePlan

HEADS, KV_HEADS = 6, 2
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0, 3.0, -30.0])
VARIANTS = {
    "plain": PLAIN,
    "scale": AttentionVariant(scale=0.3),
    "soft cap": AttentionVariant(soft_cap=1.5),
    "window": AttentionVariant(window=5),
    "window of blocks": AttentionVariant(window=32),
    "longer window": AttentionVariant(window=61),
    "sinks": AttentionVariant(sinks_n=SINKS),
    "all": AttentionVariant(scale=0.4, soft_cap=2.0, window=21, sinks_n=SINKS),
}
all_variants = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])


@on_all_levels
@all_variants
@dtypes
@pytest.mark.parametrize("size", [64, 20])
def test_the_native_kernel(native, variant, dtype, size):
    q, cache, tables = native_case(ROWS, HEADS, KV_HEADS, size, dtype)
    out = attend(q, cache, tile_plan(native, ROWS, tables, 5), None, variant)
    expected = one_by_one(q, cache, tables, ROWS, variant)
    torch.testing.assert_close(out.double(), expected, atol=4e-6, rtol=2e-5)


@all_variants
@dtypes
def test_plain_torch(variant, dtype):
    q, cache, tables = native_case(ROWS, HEADS, KV_HEADS, 20, dtype)
    unused = cache.all_2bk16H if cache.scales_2bk16 is None else cache.scales_2bk16
    unused.nan_to_num_(0.0)  # what torch masks must be a number
    starts, counts = (np.array(column, np.int64) for column in zip(*ROWS, strict=True))
    shape = CacheShape(cache.all_2bk16H.shape[1], KV_HEADS, 20, torch.float32)
    plan = plan_attention(starts, counts, tables.numpy(), shape)
    for _ in range(2):  # the second time with masks that were kept
        out = attend(q, cache, plan, None, variant)
        torch.testing.assert_close(out.double(), one_by_one(q, cache, tables, ROWS, variant), atol=4e-6, rtol=2e-5)


def test_each_variant_differs_from_the_others():
    q, cache, tables = native_case(ROWS, HEADS, KV_HEADS, 20)
    outputs = [one_by_one(q, cache, tables, ROWS, variant) for variant in VARIANTS.values()]
    for i, output in enumerate(outputs):
        assert all((output - other).abs().max() > 0.01 for other in outputs[:i])


@on_all_levels
@all_variants
@dtypes
def test_tiles_and_groups_do_not_change_a_bit(native, variant, dtype):
    """Sequences that begin with the same blocks, some of which windows of some rows do not reach."""
    rows = [(40, 1), (79, 1), (48, 1), (100, 20), (47, 1), (63, 1), (200, 1)]
    q, cache, tables = native_case(rows, HEADS, KV_HEADS, 24, dtype)
    tables[:3, :2] = tables[0, :2]
    tables[4:, :2] = tables[4, :2]
    each = tile_plan(native, rows, tables, 100)
    alone = attend(q, cache, each, None, variant)
    for groups in ([[0, 3, 2], [3, 1, 0], [4, 3, 2]], [[0, 2, 1], [2, 1, 0], [3, 1, 0], [4, 2, 2], [6, 1, 0]]):
        together = TilePlan(native, tables, each.tiles_4B, columns(groups))
        assert torch.equal(attend(q, cache, together, None, variant), alone)
    for most in (1, 7):
        assert torch.equal(attend(q, cache, tile_plan(native, rows, tables, most), None, variant), alone)


@on_all_levels
@dtypes
@pytest.mark.parametrize("groups", [[[0, 1, 0], [1, 1, 0], [2, 1, 0]], [[0, 2, 4], [2, 1, 0]]], ids=["alone", "shared"])
def test_blocks_before_the_window_are_not_read(native, dtype, groups):
    """As others' numbers, or none, may stand there: only what a query of the group sees is read."""
    rows, variant = [(90, 1), (100, 1), (64, 20)], AttentionVariant(window=21)
    q, cache, tables = native_case(rows, HEADS, KV_HEADS, 24, dtype)
    tables[1, :4] = tables[0, :4]
    tiles = tile_plan(native, rows, tables, 100).tiles_4B
    expected = one_by_one(q, cache, tables, rows, variant)
    spoilt = cache.all_2bk16H if cache.scales_2bk16 is None else cache.scales_2bk16
    for row, first in enumerate((70 // 16, 80 // 16, 44 // 16)):
        spoilt[:, tables[row, :first]] = torch.nan
    tables[0, : 70 // 16] = tables[1, : 70 // 16] = tables[2, : 44 // 16] = -(10**9)  # nowhere
    out = attend(q, cache, TilePlan(native, tables, tiles, columns(groups)), None, variant)
    torch.testing.assert_close(out.double(), expected, atol=4e-6, rtol=2e-5)


@pytest.mark.skipif(len(runnable_levels()) < 3, reason="this CPU has no AVX-512, or there are no compiled kernels")
@all_variants
@dtypes
def test_avx2_and_avx512_give_the_same_bits(variant, dtype):
    q, cache, tables = native_case(ROWS, HEADS, KV_HEADS, 40, dtype)
    avx2, avx512 = (
        attend(q, cache, tile_plan(Native(level, 1), ROWS, tables, 5), None, variant) for level in ("avx2", "avx512")
    )
    assert torch.equal(avx2, avx512)


@on_all_levels
def test_scores_of_any_size_are_capped(native):
    """Near 0, where the cap hardly acts, and far beyond it."""
    q, cache, tables = native_case([(0, 30)], 1, 1, 16)
    for size in (1e-4, 1.0, 30.0, 1e4):
        variant = AttentionVariant(scale=size, soft_cap=50.0)
        out = attend(q, cache, tile_plan(native, [(0, 30)], tables, 8), None, variant)
        expected = one_by_one(q, cache, tables, [(0, 30)], variant)
        torch.testing.assert_close(out.double(), expected, atol=3e-5, rtol=1e-4)


@on_all_levels
def test_sinks_must_fit_the_heads(native):
    q, cache, tables = native_case([(0, 3)], 4, 2, 8)
    plan = tile_plan(native, [(0, 3)], tables, 8)
    with pytest.raises(AssertionError, match="a sink for each query head"):
        attend(q, cache, plan, None, AttentionVariant(sinks_n=SINKS))
