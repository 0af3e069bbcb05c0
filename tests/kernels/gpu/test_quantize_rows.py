"""quantize_rows against its reference, in Triton's interpreter."""

import pytest
import torch

from actorlm.kernels.gpu.quantize_rows import quantize_rows, reference

BOTH = pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])


def compared(x, dtype, group=None):
    q, scales = quantize_rows(x, dtype, group)
    expected_q, expected_scales = reference(x, dtype, group)
    assert q.dtype is dtype
    assert torch.equal(scales, expected_scales)
    assert torch.equal(q.float(), expected_q.float())
    return q, scales


@BOTH
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "size"), [(3, 16), (5, 100), (2, 2500)])
def test_rows(rows, size, source, dtype):
    torch.manual_seed(size)
    x = (torch.randn(rows, size) * torch.logspace(-3, 3, rows)[:, None]).to(source)
    q, scales = compared(x, dtype)
    assert scales.shape == (rows,)
    step = 0.501 if dtype is torch.int8 else 16.01
    torch.testing.assert_close(q.float() * scales[:, None], x.float(), rtol=0, atol=(step * scales.max()).item())


@BOTH
def test_groups(dtype):
    torch.manual_seed(0)
    x = torch.randn(3, 512) * torch.logspace(-2, 2, 512)
    _, scales = compared(x, dtype, 128)
    assert scales.shape == (3, 4)


@BOTH
def test_rows_of_a_wider_buffer(dtype):
    torch.manual_seed(1)
    compared(torch.randn(4, 96)[:, 32:80], dtype)


@BOTH
def test_the_largest_number_is_exact_and_zeros_stay_zeros(dtype):
    x = torch.tensor([[0.0, 0.0, 0.0], [-3.0, 1.5, 0.0]])
    q, scales = compared(x, dtype)
    largest = 127.0 if dtype is torch.int8 else 448.0
    assert q[0].float().tolist() == [0.0, 0.0, 0.0]
    assert q[1, 0].float() == -largest
    assert scales[0] > 0


def test_halves_are_rounded_to_even():
    q, _ = compared(torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]]), torch.int8)
    assert q.tolist() == [[127, 0, 2, 2, 0, -2, -2]]


def test_groups_must_fill_a_row():
    with pytest.raises(AssertionError, match="whole groups"):
        quantize_rows(torch.zeros(1, 100), torch.int8, 64)
