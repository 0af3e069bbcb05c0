"""block_scaled_matmul against its reference, in Triton's interpreter."""

import pytest
import torch

from actorlm.kernels.gpu.block_scaled_matmul import Tile, block_scaled_matmul, reference
from actorlm.kernels.gpu.quantize_rows import reference as quantized

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SMALL = Tile(m=16, n=64, k=128, warps=4, stages=2)


def compared(rows, size_n, size_k, dtype=torch.float32, *, has_bias=False, splits=1, tile=SMALL):
    torch.manual_seed(rows)
    a, a_scales = quantized(torch.randn(rows, size_k), torch.float8_e4m3fn, 128)
    b = (torch.randn(size_n, size_k) * 100).to(torch.float8_e4m3fn)
    b_scales = torch.rand(-(-size_n // 128), size_k // 128) * 1e-2 * size_k**-0.5
    bias = torch.randn(size_n).to(dtype) if has_bias else None
    out = block_scaled_matmul(a, a_scales, b, b_scales, dtype, bias, splits=splits, tile=tile)
    assert out.dtype is dtype
    expected = reference(a, a_scales, b, b_scales, dtype, bias)
    torch.testing.assert_close(out, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("has_bias", [True, False])
def test_each_type(dtype, has_bias):
    compared(5, 256, 256, dtype, has_bias=has_bias)


@pytest.mark.parametrize(("rows", "size_n"), [(1, 64), (17, 192), (20, 200)])
def test_sizes_that_are_no_multiples(rows, size_n):
    compared(rows, size_n, 256)
    compared(rows, size_n, 256, tile=SMALL._replace(n=128))


@pytest.mark.parametrize(("size_k", "splits"), [(512, 4), (384, 2)])
def test_parts_of_a_sum(size_k, splits):
    compared(3, 128, size_k, has_bias=True, splits=splits)


def test_a_tile_across_blocks():
    with pytest.raises(AssertionError, match="lie in one block"):
        compared(1, 256, 128, tile=SMALL._replace(n=256))
