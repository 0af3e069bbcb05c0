"""The attention of decoding with split keys against attention of one token at a time."""

import pytest
import torch

from actorlm.kernels.gpu.attention import FP8
from actorlm.kernels.gpu.merge_splits import Partials
from actorlm.kernels.gpu.split_attention import reference, split_attention
from actorlm.kernels.gpu.tiles import Tile
from gpu.attention_cases import VARIANTS, agree, step

TILE = Tile(rows=16, columns=32, warps=4, stages=2)


def run(given, softmax, splits, tile=TILE):
    q, cache, sequences = given
    partials = Partials.empty(*q.shape[:2], splits, q.shape[2], "cpu")
    partials.means_SnPH.fill_(torch.nan)
    partials.totals_SnP.fill_(torch.nan)
    return split_attention(q, cache, sequences.tables_SW, sequences.lengths_S, softmax, tile, partials)


def expected(given, softmax):
    q, cache, sequences = given
    return reference(q, cache, sequences.tables_SW, sequences.lengths_S, softmax)


@pytest.mark.parametrize("variant", VARIANTS)
def test_differing_lengths(variant):
    softmax = VARIANTS[variant]
    given = step([200, 33, 1], [1, 1, 1], window=softmax.window)
    agree(run(given, softmax, 4), expected(given, softmax))


@pytest.mark.parametrize("splits", [1, 2, 8])
def test_numbers_of_splits(splits):
    given = step([130], [1])
    agree(run(given, VARIANTS["plain"], splits), expected(given, VARIANTS["plain"]))


@pytest.mark.parametrize("cached", [None, FP8], ids=["same", "fp8"])
def test_bfloat16(cached):
    given = step([70, 20], [1, 1], dtype=torch.bfloat16, cached=cached)
    agree(run(given, VARIANTS["all"], 2), expected(given, VARIANTS["all"]))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (20, 1)])
def test_groups(heads, kv_heads):
    given = step([40], [1], heads=heads, kv_heads=kv_heads, size=16)
    agree(run(given, VARIANTS["plain"], 2), expected(given, VARIANTS["plain"]))


@pytest.mark.parametrize("variant", ["plain", "sinks"])
def test_rows_of_padding_are_zeros(variant):
    out = run(step([20, 0], [1, 1]), VARIANTS[variant], 2)
    assert out[0].abs().max() > 0.1
    assert not out[1].any()


def test_what_the_launcher_refuses():
    q, cache, sequences = step([20], [1])
    with pytest.raises(AssertionError, match="a table and a length for each query"):
        run((torch.cat((q, q)), cache, sequences), VARIANTS["plain"], 1)
    with pytest.raises(AssertionError, match="type of the queries"):
        run((q.half(), cache, sequences), VARIANTS["plain"], 1)
