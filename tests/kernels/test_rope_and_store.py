"""rope_and_store against complex arithmetic, head by head."""

import cmath

import pytest
import torch
from native_levels import on_all_levels

from actorlm.kernels.layer_cache import LayerCache, quantised
from actorlm.kernels.rope_and_store import Heads, rope_and_store

TOKENS, HEADS, KV_HEADS, SIZE, BLOCKS = 5, 4, 2, 6, 3


def run(dtype, native=None, cached=None):
    torch.manual_seed(0)
    heads = Heads(TOKENS, HEADS, KV_HEADS, SIZE, dtype, native)
    before = torch.randn(TOKENS, HEADS + 2 * KV_HEADS, SIZE).to(dtype)
    heads.flat_TX.copy_(before.view(TOKENS, -1))
    angles = torch.rand(TOKENS, 1, SIZE // 2) * 6
    zeros = torch.zeros(2, BLOCKS, KV_HEADS, 16, SIZE, dtype=cached or dtype)
    cache = LayerCache(zeros, keys_by_feature=native is not None)
    half = len(cache.vectors_VH) // 2
    places = torch.stack([torch.randperm(half)[: TOKENS * KV_HEADS] for _ in range(2)]).view(2, TOKENS, -1)
    places = torch.cat((places[0], places[1] + half), dim=1)
    rope_and_store(heads, torch.polar(torch.ones_like(angles), angles), cache, places)
    return heads, before.double(), angles, cache if native is None else cache.turned(), places


def turned(vector, angles):
    pairs = [
        complex(a, b) * cmath.exp(1j * t)
        for (a, b), t in zip(vector.view(-1, 2).tolist(), angles.tolist(), strict=True)
    ]
    return torch.tensor([part for pair in pairs for part in (pair.real, pair.imag)], dtype=torch.float64)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_queries_are_rotated_and_keys_and_values_stored(dtype, tolerance):
    heads, before, angles, cache, places = run(dtype)
    for token in range(TOKENS):
        for head in range(HEADS):
            expected = turned(before[token, head], angles[token, 0])
            torch.testing.assert_close(heads.q_TnH[token, head].double(), expected, atol=tolerance, rtol=tolerance)
        for head in range(KV_HEADS):
            key = turned(before[token, HEADS + head], angles[token, 0])
            stored = cache.vectors_VH[places[token, head]].double()
            torch.testing.assert_close(stored, key, atol=tolerance, rtol=tolerance)
            value = cache.vectors_VH[places[token, KV_HEADS + head]].double()
            assert torch.equal(value, before[token, HEADS + KV_HEADS + head])


def test_no_other_place_is_written():
    *_, cache, places = run(torch.float32)
    untouched = torch.ones(len(cache.vectors_VH), dtype=torch.bool)
    untouched[places.view(-1)] = False
    assert not cache.vectors_VH[untouched].any()
    assert cache.vectors_VH[~untouched].any(dim=-1).all()


def test_places_of_another_shape_are_a_mistake():
    heads = Heads(2, 4, 2, 6, torch.float32)
    cache = LayerCache(torch.zeros(2, 1, 2, 16, 6))
    with pytest.raises(AssertionError):
        rope_and_store(heads, torch.ones(2, 1, 3, dtype=torch.complex64), cache, torch.zeros(2, 2, dtype=torch.int64))


@on_all_levels
@pytest.mark.parametrize("cached", [torch.float32, torch.float16, torch.bfloat16])
def test_the_native_kernel(native, cached):
    """As torch does it; caches of 16 bits get what is rounded once, to the nearest."""
    heads, _, _, cache, _ = run(torch.float32, native, cached)
    expected, _, _, expected_cache, _ = run(torch.float32)
    torch.testing.assert_close(heads.q_TnH, expected.q_TnH, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(heads.kv_T2kH, expected.kv_T2kH, atol=1e-6, rtol=1e-6)
    if cached is torch.float32:
        torch.testing.assert_close(cache.vectors_VH, expected_cache.vectors_VH, atol=1e-6, rtol=1e-6)
    else:
        rounded, *_ = run(torch.float32, native)
        assert torch.equal(cache.vectors_VH, run(torch.float32, native)[3].vectors_VH.to(cached))
        assert torch.equal(rounded.q_TnH, heads.q_TnH)


@on_all_levels
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_to_16_bits_is_that_of_torch(native, dtype):
    """Subnormal numbers, ties, overflow, infinities, and what is not a number."""
    special = [
        0.0,
        -0.0,
        1e-8,
        6e-8,
        -5.9e-8,
        6.1e-5,
        65504.0,
        65519.9,
        65520.0,
        1e38,
        torch.inf,
        -torch.inf,
        torch.nan,
    ]
    ties = [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.4e38, 2.0**-25, 3 * 2.0**-25]
    numbers = torch.tensor([*special, *ties])
    heads = Heads(1, 1, 1, len(numbers), torch.float32, native)
    heads.kv_T2kH[0, 1] = numbers
    cache = LayerCache(torch.zeros(2, 1, 1, 16, len(numbers), dtype=dtype), keys_by_feature=True)
    rotation = torch.ones(1, 1, len(numbers) // 2, dtype=torch.complex64)
    rope_and_store(heads, rotation, cache, torch.tensor([[0, 16]]))
    assert torch.equal(cache.vectors_VH[16].nan_to_num(123.0), numbers.to(dtype).nan_to_num(123.0))


@on_all_levels
@pytest.mark.parametrize("size", [6, 64])
def test_int8_is_stored_as_the_reference_quantises(native, size):
    """To the bit: from large and small vectors, zeros, ties, and what is not finite."""
    torch.manual_seed(1)
    heads = Heads(8, 2, 1, size, torch.float32, native)
    heads.flat_TX.normal_()
    heads.kv_T2kH.mul_(10.0 ** torch.randint(-40, 30, (8, 2, 1)))
    heads.kv_T2kH[0].zero_()
    heads.kv_T2kH[1, 1, :4] = torch.tensor([127.0, 0.5, -1.5, 2.5])
    heads.kv_T2kH[1, 1, 4:] = 0.0
    heads.kv_T2kH[2, 1, 3], heads.kv_T2kH[3, 1, 0] = torch.inf, torch.nan
    cache = LayerCache(torch.zeros(2, 1, 1, 16, size, dtype=torch.int8), torch.zeros(2, 1, 1, 16), keys_by_feature=True)
    places = torch.tensor([[15 - token, 16 + token] for token in range(8)])
    rope_and_store(heads, torch.polar(torch.ones(8, 1, size // 2), torch.rand(8, 1, size // 2)), cache, places)
    numbers, scales = quantised(heads.kv_T2kH)
    cache = cache.turned()
    assert torch.equal(cache.vectors_VH[places], numbers)
    assert torch.equal(cache.scales_2bk16.view(-1)[places].nan_to_num(7.0), scales.nan_to_num(7.0))
    assert cache.vectors_VH[17].tolist()[:4] == [127, 0, -2, 2]
    assert not cache.vectors_VH[8:16].logical_not().all(), "keys were stored"
    assert not cache.vectors_VH[:8].any(), "and nothing else"
