"""Checkpoints' 4-bit weights, each dequantized as its format is defined, beside what repacking makes of them.

The definitions are written number by number on purpose: nothing of how the product code packs is used here.
"""

import pytest
import torch

from actorlm.errors import ModelError
from actorlm.kernels.gpu.int4 import dequantized, from_awq, from_compressed_tensors, from_gptq, packed

N, K = 24, 128
SIZES = pytest.mark.parametrize("group", [32, 64, 128])


def half(word, place):
    """The number in a word's four bits from `4 * place` on."""
    return (int(word) % 2**32 // 16**place) % 16


def words(*shape):
    return torch.randint(-(2**31), 2**31, shape).to(torch.int32)


def scales(*shape):
    return (torch.rand(shape) + 0.5).half()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def awq(qweight, qzeros, scales, group):
    """AutoAWQ: a word has eight outputs of an input; its half bytes are outputs 0, 2, 4, 6, 1, 3, 5, 7."""
    out = torch.empty(N, K)
    for n in range(N):
        place = [0, 2, 4, 6, 1, 3, 5, 7].index(n % 8)
        for k in range(K):
            zero = half(qzeros[k // group, n // 8], place)
            out[n, k] = (half(qweight[k, n // 8], place) - zero) * float(scales[k // group, n])
    return out


def gptq(qweight, qzeros, scales, group, plus):
    """AutoGPTQ: a word of numbers has eight inputs of an output, a word of zero points eight outputs of a group."""
    out = torch.empty(N, K)
    for n in range(N):
        for k in range(K):
            zero = half(qzeros[k // group, n // 8], n % 8) + plus
            out[n, k] = (half(qweight[k // 8, n], k % 8) - zero) * float(scales[k // group, n])
    return out


def compressed(weight_packed, weight_scale, weight_zero_point, group):
    """compressed-tensors: signed numbers plus 8, eight inputs of an output a word; zero points eight outputs a word."""
    out = torch.empty(N, K)
    for n in range(N):
        for k in range(K):
            zero = 0 if weight_zero_point is None else half(weight_zero_point[n // 8, k // group], n % 8) - 8
            number = half(weight_packed[n, k // 8], k % 8) - 8
            out[n, k] = (number - zero) * float(weight_scale[n, k // group])
    return out


@SIZES
def test_awq(group):
    stored = words(K, N // 8), words(K // group, N // 8), scales(K // group, N)
    weight = from_awq(*stored)
    assert weight.group == group
    assert torch.equal(dequantized(weight), awq(*stored, group))


@SIZES
@pytest.mark.parametrize("minus_one", [True, False], ids=["gptq", "gptq_v2"])
def test_gptq(group, minus_one):
    stored = words(K // 8, N), words(K // group, N // 8), scales(K // group, N)
    in_order = (torch.arange(K) // group).int()
    weight = from_gptq(*stored, in_order, minus_one=minus_one)
    assert torch.equal(dequantized(weight), gptq(*stored, group, int(minus_one)))
    assert torch.equal(dequantized(from_gptq(*stored, None, minus_one=minus_one)), dequantized(weight))


@SIZES
@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_tensors(group, symmetric):
    stored = words(N, K // 8), scales(N, K // group), None if symmetric else words(N // 8, K // group)
    weight = from_compressed_tensors(*stored)
    assert (weight.zeros_GN is None) == symmetric
    assert torch.equal(dequantized(weight), compressed(*stored, group))


def test_zero_points_that_are_all_8_are_left_out():
    sevens = torch.full((K // 32, N // 8), 0x77777777, dtype=torch.int32)
    weight = from_gptq(words(K // 8, N), sevens, scales(K // 32, N), None, minus_one=True)
    assert weight.zeros_GN is None


def test_one_scale_for_all_inputs_becomes_groups():
    stored = words(N, 96 // 8), scales(N, 1), None
    weight = from_compressed_tensors(*stored)
    assert weight.group == 32
    numbers = torch.tensor([[half(stored[0][n, k // 8], k % 8) - 8 for k in range(96)] for n in range(N)])
    assert torch.equal(dequantized(weight), numbers * stored[1].float())


@pytest.mark.parametrize("name", ["g_idx", "weight_g_idx"])
def test_inputs_out_of_order_are_refused(name):
    order = (torch.arange(K) // 32).flip(0)
    with pytest.raises(ModelError, match=rf"^{name} .*desc_act"):
        if name == "g_idx":
            from_gptq(words(K // 8, N), words(4, N // 8), scales(4, N), order, minus_one=True)
        else:
            from_compressed_tensors(words(N, K // 8), scales(N, 4), None, order)


def test_groups_that_no_kernel_takes_are_refused():
    with pytest.raises(ModelError, match="multiple of 32"):
        packed(torch.zeros(128, 16), torch.ones(8, 16), None)
    with pytest.raises(ModelError, match="multiple of 32"):
        packed(torch.zeros(48, 16), torch.ones(1, 16), None)
