"""int4_matmul against its reference, in Triton's interpreter."""

import pytest
import torch

from actorlm.kernels.gpu.int4 import packed
from actorlm.kernels.gpu.int4_matmul import Tile, int4_matmul, reference

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SMALL = Tile(m=16, n=32, k=64, warps=4, stages=2)


def compared(rows, size_n, size_k, group, dtype=torch.float32, *, zeros=True, has_bias=False, splits=1, tile=SMALL):
    torch.manual_seed(rows)
    weight = packed(
        torch.randint(0, 16, (size_k, size_n)),
        ((torch.rand(size_k // group, size_n) + 0.5) * 0.1 * size_k**-0.5).half(),
        torch.randint(0, 17, (size_k // group, size_n)) if zeros else None,
    )
    x, bias = torch.randn(rows, size_k).to(dtype), torch.randn(size_n).to(dtype) if has_bias else None
    out = int4_matmul(x, weight, bias, splits=splits, tile=tile)
    assert out.dtype is dtype
    torch.testing.assert_close(out, reference(x, weight, bias), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_each_type_and_group(group, zeros, dtype):
    compared(5, 48, 256, group, dtype, zeros=zeros)


@pytest.mark.parametrize("step", [32, 128])
def test_other_steps(step):
    compared(5, 48, 256, 128, tile=SMALL._replace(k=step))


@pytest.mark.parametrize(("rows", "size_n", "size_k"), [(1, 16, 32), (17, 80, 96), (40, 64, 64)])
def test_sizes_that_are_no_multiples(rows, size_n, size_k):
    compared(rows, size_n, size_k, 32, has_bias=True)


@pytest.mark.parametrize(("size_k", "splits"), [(256, 4), (160, 2), (96, 4)])
def test_parts_of_a_sum(size_k, splits):
    compared(3, 32, size_k, 32, has_bias=True, splits=splits)


def test_inputs_and_weights_have_one_size():
    weight = packed(torch.zeros(64, 16), torch.ones(2, 16), None)
    with pytest.raises(AssertionError, match="a row for each input"):
        int4_matmul(torch.zeros(1, 32), weight)
