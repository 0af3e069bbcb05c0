"""paged_attention against a loop over tokens, with plans made by hand. (Plans of steps: tests/execution.)"""

import pytest
import torch
from attention_cases import ROWS, attend, columns, native_case, one_by_one, tile_plan
from native_levels import on_all_levels

from actorlm.kernels.layer_cache import LayerCache
from actorlm.kernels.paged_attention import AttentionPlan, Piece, TilePlan

HEADS, KV_HEADS, SIZE, BLOCKS = 6, 2, 8, 9


def piece(begin, tables, queries, keys, visible, cache):
    """A piece of tiles with these block tables; query q of tile b sees the keys below `visible[b][q]`."""
    tables = torch.tensor(tables)
    heads = torch.arange(KV_HEADS)[None, :, None]
    runs = tables[:, None] * KV_HEADS + heads
    runs = torch.stack((runs, runs + BLOCKS * KV_HEADS)).view(-1)
    buffer = torch.full((len(runs), 16 * SIZE), torch.nan)
    kv = buffer.view(2, len(tables), KV_HEADS, -1, SIZE)[:, :, :, :keys]
    hidden = torch.arange(keys) >= torch.tensor(visible)[:, None, :, None]
    mask = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf) if hidden.any() else None
    positions = torch.tensor(visible)[:, None, :, None] - 1
    return Piece(begin, len(tables), queries, runs, buffer, kv[0], kv[1], mask, positions)


def expected(q, cache, tables, visible):
    """One token at a time."""
    outputs = []
    for query, table, count in zip(q, tables, visible, strict=True):
        keys, values = (
            part[list(table)].transpose(1, 2).reshape(-1, KV_HEADS, SIZE)[:count] for part in cache.all_2bk16H
        )
        heads = []
        for head in range(HEADS):
            kv = head // (HEADS // KV_HEADS)
            weights = torch.softmax(keys[:, kv] @ query[head] / SIZE**0.5, 0)
            heads.append(weights @ values[:, kv])
        outputs.append(torch.cat(heads))
    return torch.stack(outputs)


@pytest.fixture
def cache():
    torch.manual_seed(0)
    return LayerCache(torch.randn(2, BLOCKS, KV_HEADS, 16, SIZE))


def check(q, cache, plan, tables, visible):
    torch.testing.assert_close(attend(q, cache, plan), expected(q, cache, tables, visible), atol=2e-6, rtol=1e-5)


def test_decode_rows_of_differing_lengths(cache):
    tables, visible = [[3, 1], [7, 0], [5, 5]], [[20], [32], [9]]
    plan = AttentionPlan(None, None, (piece(0, tables, 1, 32, visible, cache),))
    check(torch.randn(3, HEADS, SIZE), cache, plan, tables, [20, 32, 9])


def test_decode_rows_of_equal_lengths_need_no_mask(cache):
    tables = [[3, 1], [7, 0]]
    made = piece(0, tables, 1, 23, [[23], [23]], cache)
    assert made.mask_B1QK is None
    check(torch.randn(2, HEADS, SIZE), cache, AttentionPlan(None, None, (made,)), tables, [23, 23])


def test_prefill_and_decode_out_of_order_with_padding(cache):
    """Tokens 0 to 2 are a prompt after 10 others, 3 decodes, 4 is another prompt's only token, padded to three."""
    prompts = piece(0, [[2], [4]], 3, 13, [[11, 12, 13], [1, 1, 1]], cache)
    decode = piece(6, [[6, 8]], 1, 17, [[17]], cache)
    order = torch.tensor([0, 1, 2, 4, 4, 4, 3])
    source = torch.tensor([0, 1, 2, 6, 3])
    plan = AttentionPlan(order, source, (prompts, decode))
    check(torch.randn(5, HEADS, SIZE), cache, plan, [[2], [2], [2], [6, 8], [4]], [11, 12, 13, 17, 1])


def test_heads_that_cannot_be_shared_are_a_mistake(cache):
    plan = AttentionPlan(None, None, (piece(0, [[0]], 1, 1, [[1]], cache),))
    with pytest.raises(AssertionError):
        attend(torch.randn(1, 5, SIZE), cache, plan)


@on_all_levels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(9, 3, 64), (4, 4, 8), (8, 1, 20), (6, 2, 48)])
def test_the_native_kernel(native, dtype, heads, kv_heads, size):
    q, cache, tables = native_case(ROWS, heads, kv_heads, size, dtype)
    out = attend(q, cache, tile_plan(native, ROWS, tables, 5))
    torch.testing.assert_close(out.double(), one_by_one(q, cache, tables, ROWS), atol=2e-6, rtol=2e-5)


@on_all_levels
def test_tiles_do_not_change_a_bit(native):
    q, cache, tables = native_case(ROWS, 6, 2, 24)
    whole = attend(q, cache, tile_plan(native, ROWS, tables, 100))
    for most in (1, 2, 7, 16):
        assert torch.equal(attend(q, cache, tile_plan(native, ROWS, tables, most)), whole)
    token = 0
    for row, (before, tokens) in enumerate(ROWS):
        alone = tile_plan(native, [(before, tokens)], tables[row : row + 1].contiguous(), 4)
        assert torch.equal(attend(q[token : token + tokens], cache, alone), whole[token : token + tokens])
        token += tokens


@on_all_levels
def test_groups_do_not_change_a_bit(native):
    """Sequences that begin with the same blocks give the same whether these are read once or for each."""
    rows = [(40, 1), (79, 1), (48, 1), (100, 20), (47, 1), (63, 1)]
    q, cache, tables = native_case(rows, 6, 2, 24)
    tables[:3, :2] = tables[0, :2]
    tables[4:, :3] = tables[4, :3]
    each = tile_plan(native, rows, tables, 100)
    expected = attend(q, cache, each)
    for groups in ([[0, 3, 2], [3, 1, 0], [4, 2, 3]], [[0, 2, 1], [2, 1, 0], [3, 1, 0], [4, 2, 2]]):
        together = TilePlan(native, tables, each.tiles_4B, columns(groups))
        assert torch.equal(attend(q, cache, together), expected)


@on_all_levels
def test_what_is_shared_is_read_from_the_first_of_a_group(native):
    """So that a plan that shares what is not the same would show."""
    rows = [(40, 1), (40, 1)]
    q, cache, tables = native_case(rows, 6, 2, 24)
    each = tile_plan(native, rows, tables, 100)
    wrong = TilePlan(native, tables, each.tiles_4B, columns([[0, 2, 2]]))
    tables_read = tables.clone()
    tables_read[1, :2] = tables[0, :2]
    right = tile_plan(native, rows, tables_read, 100)
    assert torch.equal(attend(q, cache, wrong), attend(q, cache, right))


@on_all_levels
def test_scores_far_apart(native):
    """The largest takes all, and what is far below it counts as nothing."""
    q, cache, tables = native_case([(0, 30)], 1, 1, 16)
    cache.all_2bk16H[0, tables[0, 0].item(), 0, 3] = 1000 * q[29, 0]
    out = attend(q, cache, tile_plan(native, [(0, 30)], tables, 8))
    assert torch.equal(out[29], cache.all_2bk16H[1, tables[0, 0].item(), 0, 3])
