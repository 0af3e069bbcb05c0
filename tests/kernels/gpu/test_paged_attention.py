"""The unified attention kernel against attention of one token at a time."""

import pytest
import torch

from actorlm.kernels.gpu.attention import FP8, Softmax
from actorlm.kernels.gpu.paged_attention import paged_attention, reference
from actorlm.kernels.gpu.tiles import Tile
from gpu.attention_cases import VARIANTS, agree, step

TILE = Tile(rows=16, columns=32, warps=4, stages=2)


def check(given, softmax, tile=TILE):
    agree(paged_attention(*given, softmax, tile), reference(*given, softmax))


@pytest.mark.parametrize("variant", VARIANTS)
def test_chunks_and_decodes_in_one_step(variant):
    softmax = VARIANTS[variant]
    check(step([40, 17, 9, 5], [7, 1, 9, 1], window=softmax.window), softmax)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cached", [None, FP8], ids=["same", "fp8"])
def test_types(dtype, cached):
    check(step([33, 20], [3, 1], dtype=dtype, cached=cached), VARIANTS["plain"])


def test_an_fp8_cache_with_everything():
    check(step([50, 3], [6, 1], cached=FP8, window=21), VARIANTS["all"])


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 1), (5, 1)])
def test_groups(heads, kv_heads):
    check(step([20, 18], [4, 1], heads=heads, kv_heads=kv_heads, size=16), VARIANTS["plain"])


def test_large_tiles_of_unlike_sides():
    check(step([70], [30], size=64), VARIANTS["plain"], Tile(rows=64, columns=32, warps=4, stages=2))


@pytest.mark.parametrize("variant", ["plain", "sinks"])
def test_rows_of_padding_are_zeros(variant):
    q, cache, sequences = step([20, 0, 0], [1, 1, 1])
    out = paged_attention(q, cache, sequences, VARIANTS[variant], TILE)
    assert out[0].abs().max() > 0.1
    assert not out[1:].any()


def test_tokens_of_no_sequence_are_left_alone():
    q, cache, sequences = step([20, 5], [2, 5])
    wider = torch.cat((q, q))
    out = torch.full(wider.shape, 7.0)
    paged_attention(wider, cache, sequences, VARIANTS["plain"], TILE, out)
    agree(out[:7], reference(q, cache, sequences, VARIANTS["plain"]))
    assert (out[7:] == 7).all()


def test_sequences_without_tokens_take_no_part():
    check(step([20, 17, 30, 4], [3, 0, 0, 2]), VARIANTS["plain"])


def test_a_rows_bits_do_not_depend_on_the_batch():
    softmax = VARIANTS["plain"]
    q, cache, sequences = step([40, 17, 9], [9, 1, 9])
    together = paged_attention(q, cache, sequences, softmax, TILE)
    sequences.lengths_S[0] = sequences.lengths_S[2] = 0
    alone = paged_attention(q, cache, sequences, softmax, TILE)
    assert torch.equal(together[9], alone[9])


def test_what_the_launcher_refuses():
    q, cache, sequences = step([20], [1])
    with pytest.raises(AssertionError, match="no room for 3 heads"):
        paged_attention(q, cache, sequences, VARIANTS["plain"], Tile(rows=2, columns=16, warps=4, stages=1))
    with pytest.raises(AssertionError, match="type of the queries"):
        paged_attention(q.half(), cache, sequences, VARIANTS["plain"], TILE)
    with pytest.raises(AssertionError, match="window has a key"):
        paged_attention(q, cache, sequences, Softmax(1.0, window=0), TILE)
