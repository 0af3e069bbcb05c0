"""grouped_matmul against its reference, in Triton's interpreter."""

import pytest
import torch

from actorlm.kernels.gpu.grouped_matmul import Tile, block_for, grouped_matmul, reference
from actorlm.kernels.gpu.moe_align import moe_align

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SMALL = Tile(n=32, k=32, warps=4, stages=2)


def compared(ids, size_k, size_n, dtype=torch.float32, *, gated=False, factors=None, divide=None):
    torch.manual_seed(size_k)
    num_pairs, divide = ids.numel(), divide or ids.shape[1]
    x = torch.randn(num_pairs // divide, size_k).to(dtype)
    weight = (torch.randn(4, size_n, size_k) * size_k**-0.5).to(dtype)
    aligned = moe_align(ids, 4, 16)
    out = grouped_matmul(x, weight, aligned, num_pairs, divide=divide, gated=gated, factors_P=factors, tile=SMALL)
    expected = reference(x, weight, ids.flatten(), divide, gated=gated, factors_P=factors)
    has_expert = (ids.flatten() >= 0) & (ids.flatten() < 4)
    assert out.dtype is dtype
    torch.testing.assert_close(out[has_expert], expected[has_expert], atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def chosen(tokens, k):
    torch.manual_seed(tokens)
    return torch.stack([torch.randperm(4)[:k] for _ in range(tokens)]).int()


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_each_type(dtype, gated):
    compared(chosen(9, 2), 64, 64, dtype, gated=gated)


@pytest.mark.parametrize(("size_k", "size_n"), [(16, 8), (80, 40), (48, 100)])
def test_sizes_that_are_no_multiples(size_k, size_n):
    compared(chosen(5, 2), size_k, size_n)
    compared(chosen(5, 2), size_k, size_n, gated=True)


def test_factors_and_a_row_for_each_pair():
    compared(chosen(6, 3), 32, 32, factors=torch.rand(18), divide=1)


@pytest.mark.parametrize("ids", [[[2], [2], [2]], [[-1], [4], [0]], [[3] for _ in range(20)]])
def test_experts_without_tokens_and_pairs_without_experts(ids):
    compared(torch.tensor(ids, dtype=torch.int32), 32, 32)


def test_rows_without_a_value_stay_alone():
    """What pads a batch may be anything, and its neighbours are the same bits."""
    x, weight = torch.randn(4, 32), torch.randn(2, 32, 32)
    aligned = moe_align(torch.zeros(4, 1, dtype=torch.int32), 2, 16)
    clean = grouped_matmul(x, weight, aligned, 4, divide=1, tile=SMALL)
    x[2] = torch.nan
    out = grouped_matmul(x, weight, aligned, 4, divide=1, tile=SMALL)
    assert torch.equal(out[[0, 1, 3]], clean[[0, 1, 3]])
    assert out[2].isnan().all()


def test_what_lies_behind_a_row_is_not_read():
    x, weight = torch.full((3, 64), torch.nan), torch.full((4, 32, 64), torch.nan)
    x[:, :48], weight[:, :, :48] = torch.randn(3, 48), torch.randn(4, 32, 48)
    aligned = moe_align(chosen(3, 1), 4, 16)
    out = grouped_matmul(x[:, :48], weight[:, :, :48], aligned, 3, divide=1, tile=SMALL)
    expected = reference(x[:, :48], weight[:, :, :48], chosen(3, 1).flatten(), 1, gated=False)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_blocks_follow_the_average():
    assert [block_for(pairs, 8) for pairs in (1, 128, 129, 512, 100_000)] == [16, 16, 32, 64, 128]


def test_inputs_must_be_a_multiple_of_16():
    aligned = moe_align(torch.zeros(1, 1, dtype=torch.int32), 1, 16)
    with pytest.raises(AssertionError, match="multiple of 16"):
        grouped_matmul(torch.zeros(1, 24), torch.zeros(1, 16, 24), aligned, 1, divide=1)
