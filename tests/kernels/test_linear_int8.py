"""Products with weights of one byte: the bits of the torch oracle, on every CPU and in any batch."""

import pytest
import torch
from native_levels import on_all_levels

from actorlm.kernels.linear import gather_rows, linear, rows_of
from actorlm.kernels.linear_int8 import MAX_INPUTS, Int8Matrix, int8_bytes, quantize_rows, reference
from actorlm.kernels.native import Native, runnable_levels
from actorlm.layers.arena import Arena

SHAPES = [(16, 8), (1, 1), (100, 37), (33, 576), (256, 48)]


def filled(native, weight):
    matrix = Arena("int8", native).matrix(*weight.shape)
    matrix.put(0, weight)
    return matrix


def check(matrix, x, bias=None):
    before = torch.randn(len(x), matrix.shape[0])
    for adds in (False, True):
        made, expected = before.clone(), before.clone()
        linear(made, x, matrix, bias, adds=adds)
        reference(expected, x, matrix.whole(), matrix.scale_o[: matrix.shape[0]], bias, adds=adds)
        assert torch.equal(made, expected)


@on_all_levels
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_the_bits_are_the_oracles(native, outputs, inputs):
    torch.manual_seed(0)
    matrix = filled(native, torch.randn(outputs, inputs))
    for rows in (1, 2, 7, 13, 40, 200):
        check(matrix, torch.randn(rows, inputs) * torch.rand(rows, 1) * 5)
        check(matrix, torch.randn(rows, inputs), torch.randn(outputs))


@on_all_levels
def test_the_largest_sums_do_not_overflow(native):
    """All weights and inputs at their ends: 255 * 127 for each of two neighbours, 127 * 127 a product in the end."""
    for inputs in (64, MAX_INPUTS):
        for sign in (1.0, -1.0):
            check(filled(native, torch.full((16, inputs), sign)), torch.full((5, inputs), 3.0))


@on_all_levels
def test_it_is_close_to_the_weights(native):
    torch.manual_seed(1)
    weight, x = torch.randn(64, 512), torch.randn(9, 512)
    out = torch.empty(9, 64)
    linear(out, x, filled(native, weight))
    exact = x @ weight.t()
    assert 1e-4 < (out - exact).norm() / exact.norm() < 0.02


@on_all_levels
def test_rows_of_nothing_and_of_no_numbers(native):
    """Zeros give the bias, tiny numbers no infinity, and what is not a number shows."""
    matrix, bias = filled(native, torch.randn(20, 40)), torch.randn(20)
    x = torch.randn(5, 40)
    x[0], x[1] = 0.0, 1e-36
    x[2, 7], x[3, 1] = torch.inf, torch.nan
    out = torch.empty(5, 20)
    linear(out, x, matrix, bias)
    assert torch.equal(out[:2], bias.expand(2, -1))
    assert out[2:4].isnan().all()
    assert out[4].isfinite().all()


@on_all_levels
def test_a_row_has_the_same_bits_in_any_batch(native):
    torch.manual_seed(2)
    matrix, x = filled(native, torch.randn(100, 77)), torch.randn(210, 77)
    alone = torch.cat([(linear(one := torch.empty(1, 100), row[None], matrix), one)[1] for row in x])
    for begin, end in [(0, 210), (3, 5), (7, 20), (50, 175), (100, 149)]:
        out = torch.empty(end - begin, 100)
        linear(out, x[begin:end], matrix)
        assert torch.equal(out, alone[begin:end])


@on_all_levels
def test_filling_by_rows(native):
    weight = torch.randn(45, 6)
    whole, scale = quantize_rows(weight)
    matrix = Int8Matrix(native, torch.zeros(int8_bytes(45, 6), dtype=torch.uint8), torch.zeros(48), (45, 6))
    for begin, count in [(0, 10), (10, 1), (11, 34)]:
        part = rows_of(matrix, begin, count)
        assert (part.shape, part.nbytes) == ((count, 6), count * 6)
        part.put(0, weight[begin : begin + count])
    assert torch.equal(matrix.whole(), whole)
    assert torch.equal(matrix.scale_o[:45], scale)
    ids = torch.tensor([44, 0, 17, 16, 44])
    assert torch.equal(gather_rows(matrix, ids), (whole * scale[:, None])[ids])


@pytest.mark.skipif(not runnable_levels(), reason="there are no compiled kernels")
def test_more_inputs_than_a_sum_holds_are_refused():
    with pytest.raises(AssertionError, match="65537 features"):
        Arena("int8", Native(runnable_levels()[-1], threads=1)).matrix(16, MAX_INPUTS + 1)
