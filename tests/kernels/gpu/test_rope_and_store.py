"""Rotation and storing against complex numbers, token by token."""

import pytest
import torch

from actorlm.kernels.gpu.attention import FP8, Cache
from actorlm.kernels.gpu.rope_and_store import reference, rope_and_store

TOKENS, BLOCKS = 4, 3
PLACES = torch.tensor([17, 0, -1, 46], dtype=torch.int32)


def given(dtype, cached=None, *, heads=5, kv_heads=2, size=24):
    torch.manual_seed(0)
    heads_TmH = torch.randn(TOKENS, heads + 2 * kv_heads, size).to(dtype)
    angles = torch.rand(TOKENS, size // 2) * 6
    kv = torch.full((2, BLOCKS, kv_heads, 16, size), 7.0).to(cached or dtype)
    scales = (0.5, 0.25) if cached == FP8 else (1.0, 1.0)
    return heads_TmH, torch.polar(torch.ones_like(angles), angles), Cache(kv, *scales), PLACES


def check(make, tolerance):
    (heads, *_, cache, _), (expected, *_, expected_cache, _) = both = make(), make()
    rope_and_store(*both[0])
    reference(*both[1])
    torch.testing.assert_close(heads, expected, atol=tolerance, rtol=tolerance)
    # of two fp8 numbers the other one may be as near
    near = 0.13 if cache.kv_2bk16H.dtype == FP8 else tolerance
    torch.testing.assert_close(cache.kv_2bk16H.double(), expected_cache.kv_2bk16H.double(), atol=tolerance, rtol=near)
    return cache.kv_2bk16H.double()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
@pytest.mark.parametrize("cached", [None, FP8], ids=["same", "fp8"])
def test_types(dtype, tolerance, cached):
    kv = check(lambda: given(dtype, cached), tolerance)
    assert (kv != 7).any(dim=-1).sum() == 3 * 2 * 2, "three places of each of two key and two value heads"


def test_a_wider_cache():
    check(lambda: given(torch.bfloat16, torch.float32), 8e-3)


@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(32, 8, 8), (3, 1, 20), (4, 4, 16)])
def test_shapes(heads, kv_heads, size):
    check(lambda: given(torch.float32, heads=heads, kv_heads=kv_heads, size=size), 1e-6)


def test_values_are_not_turned_and_padding_is_turned():
    heads, rotation, cache, places = given(torch.float32)
    before = heads.clone()
    rope_and_store(heads, rotation, cache, places)
    assert torch.equal(heads[:, 7:], before[:, 7:])
    assert (heads[2, :7] != before[2, :7]).all(-1).all()


def test_what_is_too_large_for_fp8_becomes_the_largest():
    heads, rotation, cache, places = given(torch.float32, FP8)
    heads[1] = 1e4
    rope_and_store(heads, torch.ones_like(rotation), cache, places)
    assert (cache.kv_2bk16H[:, 0, :, 0].float() == 448).all()


def test_what_the_launcher_refuses():
    heads, rotation, cache, places = given(torch.float32)
    with pytest.raises(AssertionError, match="places are int32"):
        rope_and_store(heads, rotation, cache, places.long())
    with pytest.raises(AssertionError, match="an angle for each pair"):
        rope_and_store(heads, rotation[:, 1:], cache, places)
