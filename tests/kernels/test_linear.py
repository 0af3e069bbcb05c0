"""linear and gather_rows: torch and native against float64; the same bits whatever else is in the batch."""

import pytest
import torch
from native_levels import on_all_levels

from actorlm.kernels.linear import gather_rows, linear, rows_of
from actorlm.kernels.native import Native, runnable_levels
from actorlm.kernels.packed import PackedMatrix, PackedRows, panel_count
from actorlm.kernels.rms_norm import rms_norm
from actorlm.kernels.silu_mul import Gates, silu_mul

SHAPES = [(16, 8), (1, 1), (100, 37), (33, 576), (256, 48)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def packed(native, weight):
    matrix = PackedMatrix(native, torch.zeros(panel_count(*weight.shape), dtype=weight.dtype), tuple(weight.shape))
    matrix.put(0, weight)
    return matrix


def check(made, x, weight, bias=None, before=None):
    expected = x.double() @ weight.double().t()
    expected = expected if bias is None else expected + bias.double()
    expected = expected if before is None else expected + before.double()
    sizes = x.double().abs() @ weight.double().abs().t() + expected.abs()
    assert ((made.double() - expected).abs() <= 1e-6 * sizes).all()


@pytest.mark.parametrize("has_bias", [False, True])
def test_plain_weights(has_bias):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(5, 24), torch.randn(10, 24), torch.randn(10) if has_bias else None
    out = torch.full((5, 10), torch.nan)
    linear(out, x, weight, bias)
    check(out, x, weight, bias)
    before = torch.randn(5, 10)
    out = before.clone()
    linear(out, x, weight, bias, adds=True)
    check(out, x, weight, bias, before)


@on_all_levels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_packed_weights(native, dtype, outputs, inputs):
    torch.manual_seed(1)
    weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs)
    matrix = packed(native, weight)
    for rows in (1, 2, 7, 13, 40, 200):
        x, before = torch.randn(rows, inputs), torch.randn(rows, outputs)
        out = torch.full((rows, outputs), torch.nan)
        linear(out, x, matrix)
        check(out, x, weight)
        out = before.clone()
        linear(out, x, matrix, bias, adds=True)
        check(out, x, weight, bias, before)


@on_all_levels
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_any_batch(native, dtype):
    torch.manual_seed(2)
    matrix = packed(native, torch.randn(100, 77).to(dtype))
    x, bias = torch.randn(210, 77), torch.randn(100)
    alone = torch.empty(210, 100)
    for row in range(210):
        linear(alone[row : row + 1], x[row : row + 1], matrix, bias)
    for begin, end in [(0, 210), (3, 5), (7, 20), (50, 175), (100, 149)]:
        out = torch.empty(end - begin, 100)
        linear(out, x[begin:end], matrix, bias)
        assert torch.equal(out, alone[begin:end])


@on_all_levels
def test_rows_at_a_distance(native):
    """Inputs and results may be columns of wider tensors, which keep their other columns."""
    torch.manual_seed(3)
    weight, wide, out = torch.randn(20, 8), torch.randn(6, 30), torch.full((6, 50), 7.0)
    linear(out[:, 10:30], wide[:, 5:13], packed(native, weight))
    check(out[:, 10:30], wide[:, 5:13], weight)
    assert (out[:, :10] == 7).all()
    assert (out[:, 30:] == 7).all()


@pytest.mark.skipif(len(runnable_levels()) < 3, reason="needs a CPU with AVX-512, and compiled kernels")
@pytest.mark.parametrize("dtype", DTYPES)
def test_avx2_and_avx512_give_the_same_bits(dtype):
    torch.manual_seed(4)
    weight, x = torch.randn(50, 100).to(dtype), torch.randn(30, 100)
    outs = []
    for level in ("avx2", "avx512"):
        outs.append(torch.empty(30, 50))
        linear(outs[-1], x, packed(Native(level, threads=1), weight))
    assert torch.equal(*outs)


@on_all_levels
@pytest.mark.parametrize("dtype", DTYPES)
def test_packing_keeps_every_number_in_its_place(native, dtype):
    weight = torch.randn(45, 6).to(dtype)
    matrix = PackedMatrix(native, torch.zeros(panel_count(45, 6), dtype=dtype), (45, 6))
    for begin, count in [(0, 10), (10, 1), (11, 34)]:
        part = rows_of(matrix, begin, count)
        assert isinstance(part, PackedRows)
        assert (part.shape, part.nbytes) == ((count, 6), count * 6 * dtype.itemsize)
        part.put(0, weight[begin : begin + count].float())
        assert torch.equal(part.read(), weight[begin : begin + count])
    assert torch.equal(matrix.unpacked(), weight)
    ids = torch.tensor([44, 0, 17, 16, 44])
    assert torch.equal(gather_rows(matrix, ids), weight[ids].float())


@on_all_levels
def test_no_rows(native):
    matrix = packed(native, torch.randn(4, 3))
    linear(torch.empty(0, 4), torch.empty(0, 3), matrix)
    assert gather_rows(matrix, torch.empty(0, dtype=torch.int64)).shape == (0, 3)
    assert rms_norm(torch.empty(0, 8), torch.ones(8), 1e-5, native).shape == (0, 8)
    assert silu_mul(Gates.make(0, 8, torch.float32, native)).shape == (0, 8)


@on_all_levels
def test_mistakes_are_caught(native):
    matrix = packed(native, torch.randn(4, 3))
    with pytest.raises(AssertionError):
        linear(torch.empty(2, 4), torch.randn(2, 5), matrix)
    with pytest.raises(AssertionError):
        linear(torch.empty(2, 3), torch.randn(2, 3), matrix)
    with pytest.raises(AssertionError):
        linear(torch.empty(2, 4), torch.randn(2, 3).half(), matrix)
    with pytest.raises(AssertionError):
        linear(torch.empty(2, 4), torch.randn(3, 2).t(), matrix)
    with pytest.raises(AssertionError):
        matrix.put(3, torch.zeros(2, 3))


def test_rows_of_plain_weights_are_a_view():
    weight = torch.zeros(5, 2)
    rows_of(weight, 1, 2).fill_(1.0)
    assert weight.sum() == 4
    assert torch.equal(gather_rows(weight, torch.tensor([1, 0])), torch.tensor([[1.0, 1], [0, 0]]))
