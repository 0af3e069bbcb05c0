"""Matrix products with weights of 4 bits that are kept packed.

Numbers less their zero points are small integers, which any float type holds exactly; the sum of a group's products is
multiplied by the group's scale in float32. So weights are not rounded once more.

Legend: T rows, K inputs, N outputs, S parts of a sum.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from actorlm.kernels.gpu.int4 import GROUPS, Int4Weight, dequantized
from actorlm.kernels.gpu.sum_splits import check_bias, empty_result, sum_splits
from actorlm.kernels.gpu.tile_order import tile_order


class Tile(NamedTuple):
    """Rows, outputs and inputs that a program has at a time, and how it is compiled.

    `k` is 32, 64 or 128; where a group has fewer inputs, a step has as many as the group.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int


def tile_for(num_rows: int, dtype: torch.dtype = torch.bfloat16) -> Tile:
    """The fewest rows that hold all. Chosen by what it takes when compiled (no spills), not measured yet."""
    if dtype.itemsize == 4:
        return Tile(m=16 if num_rows <= 16 else 64, n=32, k=32, warps=4, stages=2)
    if num_rows <= 16:
        return Tile(m=16, n=128, k=64, warps=4, stages=4)
    if num_rows <= 32:
        return Tile(m=32, n=128, k=64, warps=4, stages=4)
    if num_rows <= 64:
        return Tile(m=64, n=128, k=64, warps=4, stages=3)
    return Tile(m=128, n=128, k=64, warps=8, stages=3)


def reference(x_TK: Tensor, weight: Int4Weight, bias_N: Tensor | None = None) -> Tensor:
    """See `int4_matmul`. The weight is dequantized first, and multiplied in float64."""
    out_TN = x_TK.double() @ dequantized(weight).double().T
    return (out_TN if bias_N is None else out_TN + bias_N).to(x_TK.dtype)


@triton.jit
def int4_matmul_kernel(
    x_ptr,
    packed_ptr,
    scales_ptr,
    zeros_ptr,
    bias_ptr,
    out_ptr,
    size_m,
    size_n,
    size_k,
    x_stride,
    split_k,
    GROUP_K: tl.constexpr,
    STEP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """One tile of the result, or of a part of it."""
    HALF: tl.constexpr = STEP_K // 2
    tiles_m, tiles_n = tl.cdiv(size_m, BLOCK_M), tl.cdiv(size_n, BLOCK_N)
    tile_m, tile_n = tile_order(tl.program_id(0), tiles_m, tiles_n, GROUP=8)
    split = tl.program_id(1)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    halves = tl.arange(0, HALF)
    inner = halves // 16 * 32 + halves % 16
    has_row, has_output = rows < size_m, outputs < size_n
    x_at = x_ptr + (rows * x_stride)[:, None] + inner[None, :]
    packed_at = packed_ptr + (halves * size_n)[:, None] + outputs[None, :]
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(split * split_k, min((split + 1) * split_k, size_k), STEP_K):
        low_x = tl.load(x_at + first, has_row[:, None], 0.0)
        high_x = tl.load(x_at + first + 16, has_row[:, None], 0.0)
        both = tl.load(packed_at + first // 2 * size_n, has_output[None, :], 0)
        group = first // GROUP_K * size_n + outputs
        scales = tl.load(scales_ptr + group, has_output, 0.0).to(tl.float32)
        if zeros_ptr is None:
            zeros = tl.full((BLOCK_N,), 8, tl.int8)
        else:
            zeros = tl.load(zeros_ptr + group, has_output, 0).to(tl.int8)
        low = ((both & 15).to(tl.int8) - zeros[None, :]).to(tl.float32).to(low_x.dtype)
        high = ((both >> 4).to(tl.int8) - zeros[None, :]).to(tl.float32).to(low_x.dtype)
        part = tl.dot(low_x, low, input_precision="ieee")
        part = tl.dot(high_x, high, part, input_precision="ieee")
        sums += part * scales[None, :]

    if bias_ptr is not None:
        sums += tl.load(bias_ptr + outputs, has_output, 0.0).to(tl.float32)[None, :]
    out_at = out_ptr + split.to(tl.int64) * size_m * size_n + (rows * size_n)[:, None] + outputs[None, :]
    tl.store(out_at, sums.to(out_ptr.dtype.element_ty), has_row[:, None] & has_output[None, :])


def int4_matmul(
    x_TK: Tensor,
    weight: Int4Weight,
    bias_N: Tensor | None = None,
    *,
    splits: int = 1,
    tile: Tile | None = None,
) -> Tensor:
    """[T, N] in the dtype of `x`, which is a float type: `x @ weight^T + bias`.

    With `splits` the inputs are cut into so many parts, whose sums are added in order.
    """
    tile = tile or tile_for(len(x_TK), x_TK.dtype)
    (num_rows, size_k), size_n = x_TK.shape, weight.packed_BN.shape[1]
    _check(x_TK, weight, tile)
    check_bias(bias_N, size_n)
    out = empty_result(splits, num_rows, size_n, x_TK.dtype, x_TK.device)
    int4_matmul_kernel[(triton.cdiv(num_rows, tile.m) * triton.cdiv(size_n, tile.n), splits)](
        x_TK,
        weight.packed_BN,
        weight.scales_GN,
        weight.zeros_GN,
        bias_N if splits == 1 else None,
        out,
        num_rows,
        size_n,
        size_k,
        x_TK.stride(0),
        triton.cdiv(size_k // weight.group, splits) * weight.group,
        GROUP_K=weight.group,
        STEP_K=min(weight.group, tile.k),
        BLOCK_M=tile.m,
        BLOCK_N=tile.n,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out if splits == 1 else sum_splits(out, x_TK.dtype, bias_N)


def _check(x_TK: Tensor, weight: Int4Weight, tile: Tile) -> None:
    size_n = weight.packed_BN.shape[1]
    groups = (x_TK.shape[1] // weight.group, size_n)
    assert len(x_TK) > 0, "there are rows"
    assert tile.k in GROUPS, f"a step has {GROUPS} inputs"
    assert x_TK.is_floating_point(), "inputs are floats"
    assert weight.size_k == x_TK.shape[1], "weights have a row for each input"
    assert weight.group in GROUPS, f"a group has {GROUPS} inputs"
    assert weight.packed_BN.dtype is torch.uint8, "two numbers share a byte"
    assert weight.packed_BN.is_contiguous(), "an input's numbers follow each other"
    assert size_n % 16 == 0, "the outputs are a multiple of 16"
    assert x_TK.stride(1) == 1, "a row's numbers follow each other"
    assert x_TK.stride(0) % 16 == 0, "rows are multiples of 16 apart"
    assert weight.scales_GN.shape == groups, "a scale for each group of an output"
    assert weight.scales_GN.is_contiguous(), "a group's scales follow each other"
    assert weight.zeros_GN is None or weight.zeros_GN.shape == groups, "a zero point for each group of an output"
    assert weight.zeros_GN is None or weight.zeros_GN.dtype is torch.uint8, "zero points are uint8"
    assert weight.zeros_GN is None or weight.zeros_GN.is_contiguous(), "a group's zero points follow each other"
    assert x_TK.numel() < 2**31, "rows have offsets of 31 bits"
    assert weight.packed_BN.numel() < 2**31, "weights have offsets of 31 bits"
    assert len(x_TK) * size_n < 2**31, "results have offsets of 31 bits"
