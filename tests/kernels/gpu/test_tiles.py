"""Tiles are found by kernel, shape and card."""

import pytest

from actorlm.kernels.gpu.tiles import ANY, TILES, tile


def test_a_card_has_its_own_or_what_any_has():
    assert tile("prefill", 64, 2, "sm_90") == TILES["prefill", 64, 2, "sm_90"]
    assert tile("prefill", 64, 2, "sm_89") == TILES["prefill", 64, 2, ANY]


def test_sizes_between_take_the_larger_ones_tile():
    assert tile("prefill", 96, 2, "sm_90") == TILES["prefill", 128, 2, "sm_90"]
    assert tile("decode", 16, 4) == TILES["decode", 64, 4, ANY]
    with pytest.raises(LookupError, match="decode of size 512"):
        tile("decode", 512, 2)


def test_whoever_has_an_own_row_has_one_for_any():
    assert all((*at[:3], ANY) in TILES for at in TILES)
