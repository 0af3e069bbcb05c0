"""scaled_matmul against its reference, in Triton's interpreter."""

import pytest
import torch

from actorlm.kernels.gpu.quantize_rows import reference as quantized
from actorlm.kernels.gpu.scaled_matmul import Tile, reference, scaled_matmul

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SMALL = Tile(m=16, n=32, k=32, warps=4, stages=2)
BOTH = pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])


def compared(rows, size_n, size_k, dtype, out_dtype=torch.float32, *, has_bias=False, splits=1):
    torch.manual_seed(rows)
    a, a_scales = quantized(torch.randn(rows, size_k) * torch.logspace(-1, 1, rows)[:, None], dtype)
    b, b_scales = quantized(torch.randn(size_n, size_k) * size_k**-0.5, dtype)
    bias = torch.randn(size_n).to(out_dtype) if has_bias else None
    out = scaled_matmul(a, a_scales, b, b_scales, out_dtype, bias, splits=splits, tile=SMALL)
    assert out.dtype is out_dtype
    torch.testing.assert_close(
        out,
        reference(a, a_scales, b, b_scales, out_dtype, bias),
        atol=TOLERANCE[out_dtype],
        rtol=TOLERANCE[out_dtype],
    )


@BOTH
@pytest.mark.parametrize("out_dtype", TOLERANCE)
@pytest.mark.parametrize("has_bias", [True, False])
def test_each_type(dtype, out_dtype, has_bias):
    compared(20, 48, 64, dtype, out_dtype, has_bias=has_bias)


@BOTH
@pytest.mark.parametrize(("rows", "size_n", "size_k"), [(1, 40, 80), (17, 33, 16), (150, 64, 48)])
def test_sizes_that_are_no_multiples(rows, size_n, size_k, dtype):
    compared(rows, size_n, size_k, dtype)


@BOTH
@pytest.mark.parametrize(("size_k", "splits"), [(128, 4), (144, 2), (80, 4)])
def test_parts_of_a_sum(size_k, splits, dtype):
    compared(3, 32, size_k, dtype, has_bias=True, splits=splits)


def test_rows_of_a_wider_buffer():
    torch.manual_seed(3)
    a, b = torch.randint(-128, 128, (4, 64)).to(torch.int8), torch.randint(-128, 128, (32, 32)).to(torch.int8)
    ones = torch.ones(32)
    out = scaled_matmul(a[:, 16:48], ones[:4], b, ones, torch.float32, tile=SMALL)
    assert torch.equal(out.long(), a[:, 16:48].long() @ b.long().T)


def test_what_lies_behind_a_row_is_not_read():
    a, b = (torch.full((16, 64), torch.nan).to(torch.float8_e4m3fn) for _ in range(2))
    a[:, :48], b[:, :48] = 1.0, 2.0
    out = scaled_matmul(a[:, :48], torch.ones(16), b[:, :48], torch.ones(16), torch.float32, tile=SMALL)
    assert torch.equal(out, torch.full((16, 16), 96.0))


def test_one_dtype():
    a, b = torch.zeros(1, 16, dtype=torch.int8), torch.zeros(16, 16).to(torch.float8_e4m3fn)
    with pytest.raises(AssertionError, match="both have one dtype"):
        scaled_matmul(a, torch.ones(1), b, torch.ones(16), torch.float32)
