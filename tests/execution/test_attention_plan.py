"""Plans of attention: who sees what, how much is padded, how many pieces there are."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actorlm.config import BLOCK_SIZE
from actorlm.execution import attention_plan
from actorlm.execution.attention_plan import TILE_QUERIES, CacheShape, plan_attention

SHAPE = CacheShape(num_blocks=10_000, num_kv_heads=2, head_dim=8, dtype=torch.float32)
ROWS = st.lists(st.tuples(st.integers(0, 600), st.integers(1, 300)), min_size=1, max_size=12)


def plan(rows, shape=SHAPE):
    starts, counts = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    blocks = -(-(starts + counts) // BLOCK_SIZE)
    tables = np.zeros((len(rows), blocks.max()), np.int32)
    for row, size in enumerate(blocks):
        tables[row, :size] = 1 + np.arange(size) + 100 * row
    return plan_attention(starts, counts, tables, shape), tables


def seen_by_tokens(made, shape=SHAPE):
    """For each token: the places [block, offset] that its query sees, read out of the plan."""
    seen = []
    for piece in made.pieces:
        keys = piece.k_BkKH.shape[2]
        runs = piece.runs_R.view(2, piece.tiles, shape.num_kv_heads, -1)
        assert torch.equal(runs[1], runs[0] + shape.num_blocks * shape.num_kv_heads), "values follow keys"
        assert torch.equal(runs[0, :, 1], runs[0, :, 0] + 1), "heads follow each other"
        blocks = runs[0, :, 0] // shape.num_kv_heads
        for tile in range(piece.tiles):
            for query in range(piece.queries):
                mask = None if piece.mask_B1QK is None else piece.mask_B1QK[tile, 0, query]
                visible = [i for i in range(keys) if mask is None or mask[i] == 0]
                seen.append([(int(blocks[tile, i // BLOCK_SIZE]), i % BLOCK_SIZE) for i in visible])
    source = range(len(seen)) if made.source_T is None else made.source_T.tolist()
    order = range(len(seen)) if made.order_P is None else made.order_P.tolist()
    assert [order[place] for place in source] == list(range(len(source)))
    return [seen[place] for place in source]


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 140)), min_size=1, max_size=4))
def test_each_token_sees_its_past_and_itself(rows):
    made, tables = plan(rows)
    expected = [
        [(int(tables[row, i // BLOCK_SIZE]), i % BLOCK_SIZE) for i in range(position + 1)]
        for row, (start, count) in enumerate(rows)
        for position in range(start, start + count)
    ]
    assert seen_by_tokens(made) == expected


@settings(deadline=None)
@given(ROWS)
def test_padding_is_below_twice_in_each_direction(rows):
    made, _ = plan(rows)
    for piece in made.pieces:
        order = torch.arange(5000) if made.order_P is None else made.order_P
        size = piece.tiles * piece.queries
        assert size < 2 * len(order[piece.begin : piece.begin + size].unique())
        blocks = piece.runs_R.view(2, piece.tiles, 2, -1)[0, :, 0]
        used = [len(set(tile.tolist())) for tile in blocks]
        assert blocks.shape[1] < 2 * min(used)
    assert sum(piece.tiles * piece.queries for piece in made.pieces) < 2 * sum(count for _, count in rows)


def test_rows_of_similar_lengths_are_one_piece():
    made, _ = plan([(129 + i, 1) for i in range(64)])
    assert len(made.pieces) == 1
    assert made.order_P is None
    assert made.source_T is None


def test_pieces_grow_with_doublings_and_not_with_rows(monkeypatch):
    monkeypatch.setattr(attention_plan, "MAX_PIECE_BYTES", 1 << 40)
    lengths = [i * 10 for i in range(200)]
    once, _ = plan([(length, 1) for length in lengths])
    twice, _ = plan([(length, 1) for length in lengths * 2])
    assert len(once.pieces) == len(twice.pieces) == 8, "1, 2, 4, ..., 128 blocks"


def test_equal_decode_rows_need_no_mask():
    made, _ = plan([(50, 1)] * 3)
    assert made.pieces[0].mask_B1QK is None
    made, _ = plan([(50, 1), (51, 1)])
    assert made.pieces[0].mask_B1QK is not None


def test_what_a_piece_gathers_is_bounded(monkeypatch):
    monkeypatch.setattr(attention_plan, "MAX_PIECE_BYTES", 10 * SHAPE.block_bytes)
    made, _ = plan([(100, 1)] * 9)
    assert [piece.tiles for piece in made.pieces] == [1] * 9
    made, _ = plan([(20, 1)] * 9)
    assert [piece.tiles for piece in made.pieces] == [5, 4]
    assert len({piece.gathered_RX.data_ptr() for piece in made.pieces}) == 1, "one buffer, used in turn"


def test_a_long_prompt_is_cut_into_tiles():
    made, _ = plan([(0, 3 * TILE_QUERIES)])
    assert sorted(piece.k_BkKH.shape[2] for piece in made.pieces) == [TILE_QUERIES, 2 * TILE_QUERIES, 3 * TILE_QUERIES]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masks_have_the_dtype_of_the_model(dtype):
    made, _ = plan([(0, 5)], CacheShape(100, 2, 8, dtype))
    assert made.pieces[0].mask_B1QK.dtype is made.pieces[0].gathered_RX.dtype is dtype
