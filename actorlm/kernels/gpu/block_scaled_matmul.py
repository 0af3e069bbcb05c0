"""Matrix products of fp8 numbers whose scales are those of blocks, as DeepSeek V3's checkpoints have them.

Each 128 inputs of a row have a scale (`quantize_rows` with groups), and each block of 128 x 128 weights.

Legend: T rows, K inputs, N outputs, G groups of 128 inputs, B blocks of 128 outputs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from actorlm.kernels.gpu.scaled_matmul import Tile, check_numbers
from actorlm.kernels.gpu.sum_splits import check_bias, empty_result, sum_splits
from actorlm.kernels.gpu.tile_order import tile_order

SIZE = 128


def tile_for(num_rows: int) -> Tile:
    """The fewest rows that hold all, up to 128. Chosen by what it takes when compiled (no spills), not measured yet."""
    if num_rows <= 16:
        return Tile(m=16, n=64, k=SIZE, warps=4, stages=5)
    if num_rows <= 64:
        return Tile(m=64, n=64, k=SIZE, warps=4, stages=4)
    return Tile(m=128, n=128, k=SIZE, warps=8, stages=3)


def reference(
    a_TK: Tensor, scales_TG: Tensor, b_NK: Tensor, scales_BG: Tensor, dtype: torch.dtype, bias_N: Tensor | None = None
) -> Tensor:
    """See `block_scaled_matmul`. The numbers are scaled first, and multiplied in float64."""
    scales_NK = scales_BG.repeat_interleave(SIZE, 0)[: len(b_NK)].repeat_interleave(SIZE, 1)
    out_TN = (a_TK.double() * scales_TG.repeat_interleave(SIZE, 1)) @ (b_NK.double() * scales_NK).T
    return (out_TN if bias_N is None else out_TN + bias_N).to(dtype)


@triton.jit
def block_scaled_matmul_kernel(
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_K: tl.constexpr,
) -> None:
    """One tile of the result, or of a part of it. A step is a group of inputs."""
    tiles_m, tiles_n = tl.cdiv(size_m, BLOCK_M), tl.cdiv(size_n, BLOCK_N)
    tile_m, tile_n = tile_order(tl.program_id(0), tiles_m, tiles_n, GROUP=8)
    split = tl.program_id(1)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, GROUP_K)
    groups = size_k // GROUP_K
    a_at = a_ptr + (rows * a_stride)[:, None] + inner[None, :]
    b_at = b_ptr + (outputs * b_stride)[None, :] + inner[:, None]
    a_scales_at = a_scales_ptr + rows * groups
    b_scales_at = b_scales_ptr + tile_n * BLOCK_N // GROUP_K * groups
    has_row, has_output = rows < size_m, outputs < size_n
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(split * split_k, min((split + 1) * split_k, size_k), GROUP_K):
        a = tl.load(a_at + first, has_row[:, None], 0.0)
        b = tl.load(b_at + first, has_output[None, :], 0.0)
        scales = tl.load(a_scales_at + first // GROUP_K, has_row, 0.0) * tl.load(b_scales_at + first // GROUP_K)
        sums += tl.dot(a, b) * scales[:, None]

    if bias_ptr is not None:
        sums += tl.load(bias_ptr + outputs, has_output, 0.0).to(tl.float32)[None, :]
    out_at = out_ptr + split.to(tl.int64) * size_m * size_n + (rows * size_n)[:, None] + outputs[None, :]
    tl.store(out_at, sums.to(out_ptr.dtype.element_ty), has_row[:, None] & has_output[None, :])


def block_scaled_matmul(
    a_TK: Tensor,
    scales_TG: Tensor,
    b_NK: Tensor,
    scales_BG: Tensor,
    dtype: torch.dtype,
    bias_N: Tensor | None = None,
    *,
    splits: int = 1,
    tile: Tile | None = None,
) -> Tensor:
    """[T, N] in `dtype`: `a @ b^T + bias`, each times its scales. `a` and `b` are float8_e4m3fn, scales float32.

    The inputs are a multiple of 128; the last block of outputs may be smaller. With `splits` the inputs are cut into so
    many parts, whose sums are added in order.
    """
    tile = tile or tile_for(len(a_TK))
    (num_rows, size_k), size_n = a_TK.shape, len(b_NK)
    _check(a_TK, scales_TG, b_NK, scales_BG, tile)
    check_bias(bias_N, size_n)
    out = empty_result(splits, num_rows, size_n, dtype, a_TK.device)
    block_scaled_matmul_kernel[(triton.cdiv(num_rows, tile.m) * triton.cdiv(size_n, tile.n), splits)](
        a_TK,
        b_NK,
        scales_TG,
        scales_BG,
        bias_N if splits == 1 else None,
        out,
        num_rows,
        size_n,
        size_k,
        a_TK.stride(0),
        b_NK.stride(0),
        triton.cdiv(size_k // SIZE, splits) * SIZE,
        BLOCK_M=tile.m,
        BLOCK_N=tile.n,
        GROUP_K=SIZE,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out if splits == 1 else sum_splits(out, dtype, bias_N)


def _check(a_TK: Tensor, scales_TG: Tensor, b_NK: Tensor, scales_BG: Tensor, tile: Tile) -> None:
    size_k = a_TK.shape[1]
    check_numbers(a_TK, b_NK, (torch.float8_e4m3fn,), SIZE)
    assert scales_TG.shape == (len(a_TK), size_k // SIZE), "a scale for each group of a row"
    assert scales_BG.shape == (-(-len(b_NK) // SIZE), size_k // SIZE), "a scale for each block of weights"
    assert scales_TG.dtype is scales_BG.dtype is torch.float32, "scales are float32"
    assert scales_TG.is_contiguous(), "scales follow each other"
    assert scales_BG.is_contiguous(), "scales follow each other"
    assert tile.k == SIZE, f"a step is {SIZE} inputs"
    assert SIZE % tile.n == 0, "a tile's outputs lie in one block"
