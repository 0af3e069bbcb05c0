"""Matrix products of 8-bit numbers, with a scale for each row and one for each output.

int8 is multiplied exactly. The tensor cores of sm_90 keep sums of fp8 with fewer bits than float32 has, so what they
have summed is added to float32 after every 128 inputs.

Legend: T rows, K inputs, N outputs, S parts of a sum.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from actorlm.kernels.gpu.sum_splits import check_bias, empty_result, sum_splits
from actorlm.kernels.gpu.tile_order import tile_order

TYPES = (torch.int8, torch.float8_e4m3fn)


class Tile(NamedTuple):
    """Rows, outputs and inputs that a program has at a time, and how it is compiled."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


def tile_for(num_rows: int) -> Tile:
    """The fewest rows that hold all, up to 128. Chosen by what it takes when compiled (no spills), not measured yet."""
    if num_rows <= 16:
        return Tile(m=16, n=64, k=256, warps=4, stages=4)
    if num_rows <= 32:
        return Tile(m=32, n=64, k=256, warps=4, stages=3)
    if num_rows <= 64:
        return Tile(m=64, n=64, k=128, warps=4, stages=4)
    return Tile(m=128, n=128, k=128, warps=8, stages=3)


def reference(
    a_TK: Tensor, scales_T: Tensor, b_NK: Tensor, scales_N: Tensor, dtype: torch.dtype, bias_N: Tensor | None = None
) -> Tensor:
    """See `scaled_matmul`. The numbers are scaled first, and multiplied in float64."""
    out_TN = (a_TK.double() * scales_T[:, None]) @ (b_NK.double() * scales_N[:, None]).T
    return (out_TN if bias_N is None else out_TN + bias_N).to(dtype)


@triton.jit
def scaled_matmul_kernel(
    a_ptr,
    b_ptr,
    a_scales_ptr,
    b_scales_ptr,
    bias_ptr,
    out_ptr,
    size_m,
    size_n,
    size_k,
    a_stride,
    b_stride,
    split_k,
    INTEGER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """One tile of the result, or of a part of it: `split_k` inputs from the program's second number on."""
    EXACT_AFTER: tl.constexpr = min(128, BLOCK_K)
    tiles_m, tiles_n = tl.cdiv(size_m, BLOCK_M), tl.cdiv(size_n, BLOCK_N)
    tile_m, tile_n = tile_order(tl.program_id(0), tiles_m, tiles_n, GROUP=8)
    split = tl.program_id(1)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    a_at = a_ptr + (rows * a_stride)[:, None] + inner[None, :]
    b_at = b_ptr + (outputs * b_stride)[None, :] + inner[:, None]
    has_row, has_output = rows < size_m, outputs < size_n
    begin = split * split_k
    end = min(begin + split_k, size_k)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.int32 if INTEGER else tl.float32)
    for first in range(begin, end, BLOCK_K):
        within = first + inner < end
        a = tl.load(a_at + first, has_row[:, None] & within[None, :], 0.0)
        b = tl.load(b_at + first, has_output[None, :] & within[:, None], 0.0)
        sums = tl.dot(a, b, sums, max_num_imprecise_acc=EXACT_AFTER, out_dtype=sums.dtype)

    a_scales = tl.load(a_scales_ptr + rows, has_row, 0.0)
    b_scales = tl.load(b_scales_ptr + outputs, has_output, 0.0)
    out = sums.to(tl.float32) * a_scales[:, None] * b_scales[None, :]
    if bias_ptr is not None:
        out += tl.load(bias_ptr + outputs, has_output, 0.0).to(tl.float32)[None, :]
    out_at = out_ptr + split.to(tl.int64) * size_m * size_n + (rows * size_n)[:, None] + outputs[None, :]
    tl.store(out_at, out.to(out_ptr.dtype.element_ty), has_row[:, None] & has_output[None, :])


def scaled_matmul(
    a_TK: Tensor,
    scales_T: Tensor,
    b_NK: Tensor,
    scales_N: Tensor,
    dtype: torch.dtype,
    bias_N: Tensor | None = None,
    *,
    splits: int = 1,
    tile: Tile | None = None,
) -> Tensor:
    """[T, N] in `dtype`: `(a * scales_T) @ (b * scales_N)^T + bias`. `a` and `b` are both int8 or both float8_e4m3fn.

    Scales are float32. With `splits` the inputs are cut into so many parts, whose sums are added in order.
    """
    tile = tile or tile_for(len(a_TK))
    (num_rows, size_k), size_n = a_TK.shape, len(b_NK)
    _check(a_TK, scales_T, b_NK, scales_N)
    check_bias(bias_N, size_n)
    split_k = triton.cdiv(triton.cdiv(size_k, tile.k), splits) * tile.k
    out = empty_result(splits, num_rows, size_n, dtype, a_TK.device)
    scaled_matmul_kernel[(triton.cdiv(num_rows, tile.m) * triton.cdiv(size_n, tile.n), splits)](
        a_TK,
        b_NK,
        scales_T,
        scales_N,
        bias_N if splits == 1 else None,
        out,
        num_rows,
        size_n,
        size_k,
        a_TK.stride(0),
        b_NK.stride(0),
        split_k,
        INTEGER=a_TK.dtype is torch.int8,
        BLOCK_M=tile.m,
        BLOCK_N=tile.n,
        BLOCK_K=tile.k,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out if splits == 1 else sum_splits(out, dtype, bias_N)


def check_numbers(a_TK: Tensor, b_NK: Tensor, types: Sequence[torch.dtype], multiple: int) -> None:
    """Asserts what products of 8-bit numbers rely on: their types, and of what the inputs are a multiple."""
    assert len(a_TK) > 0, "there are rows"
    assert a_TK.dtype is b_NK.dtype, "both have one dtype"
    assert a_TK.dtype in types, f"numbers are {' or '.join(str(each).removeprefix('torch.') for each in types)}"
    assert b_NK.shape[1] == a_TK.shape[1], "weights have a column for each input"
    assert a_TK.stride(1) == b_NK.stride(1) == 1, "a row's numbers follow each other"
    assert a_TK.shape[1] % multiple == 0, f"the inputs are a multiple of {multiple}"
    assert a_TK.stride(0) % 16 == b_NK.stride(0) % 16 == 0, "rows are multiples of 16 apart"
    assert a_TK.numel() < 2**31, "rows have offsets of 31 bits"
    assert b_NK.numel() < 2**31, "weights have offsets of 31 bits"
    assert len(a_TK) * len(b_NK) < 2**31, "results have offsets of 31 bits"


def _check(a_TK: Tensor, scales_T: Tensor, b_NK: Tensor, scales_N: Tensor) -> None:
    check_numbers(a_TK, b_NK, TYPES, 16)
    assert scales_T.shape == a_TK.shape[:1], "a scale for each row"
    assert scales_N.shape == b_NK.shape[:1], "a scale for each output"
    assert scales_T.dtype is scales_N.dtype is torch.float32, "scales are float32"
    assert scales_T.is_contiguous(), "scales follow each other"
    assert scales_N.is_contiguous(), "scales follow each other"
