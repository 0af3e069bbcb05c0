"""Matrix products in which each row has its own expert's weights.

Rows come in the order of `moe_align`: a block of slots has one expert, and each slot says which row of the input it
reads and which row of the output it writes. A row's result depends on that row alone. Sums are float32.

Legend: P pairs of a token and an expert, A rows of the input, X experts, K inputs, N outputs, F gated features.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
import triton
import triton.language as tl
from torch import Tensor

from actorlm.kernels.gpu.moe_align import Alignment


class Tile(NamedTuple):
    """Outputs and inputs that a program has at a time, beside its block of slots, and how it is compiled."""

    n: int
    k: int
    warps: int
    stages: int


def block_for(num_pairs: int, num_experts: int) -> int:
    """Slots a block: as many as an expert has on average, at least what a matrix instruction takes."""
    average = -(-num_pairs // num_experts)
    return next((block for block in (16, 32, 64) if average <= block), 128)


def tile_for(block: int, *, gated: bool, dtype: torch.dtype = torch.bfloat16) -> Tile:
    """Chosen by what it takes when compiled (no spills on any card), not measured yet."""
    if dtype.itemsize == 4:
        return Tile(n=32, k=16 if gated else 32, warps=4 if block < 128 else 8, stages=2)
    if block <= 32:
        return Tile(n=64, k=128, warps=4, stages=3) if gated else Tile(n=128, k=128, warps=4, stages=3)
    if block == 64:
        return Tile(n=64, k=64, warps=4, stages=4) if gated else Tile(n=128, k=64, warps=4, stages=4)
    return Tile(n=64, k=64, warps=8, stages=3) if gated else Tile(n=128, k=64, warps=8, stages=3)


def reference(
    x_AK: Tensor, weight_XNK: Tensor, ids_P: Tensor, divide: int, *, gated: bool, factors_P: Tensor | None = None
) -> Tensor:
    """What `grouped_matmul` writes for pairs that have an expert, and zeros for others."""
    rows = []
    for pair, expert in enumerate(ids_P.tolist()):
        if not 0 <= expert < len(weight_XNK):
            rows.append(torch.zeros(weight_XNK.shape[1] // (2 if gated else 1), device=x_AK.device))
            continue
        y_N = weight_XNK[expert].float() @ x_AK[pair // divide].float()
        if gated:
            gate_F, up_F = y_N.chunk(2)
            y_N = F.silu(gate_F) * up_F
        rows.append(y_N if factors_P is None else y_N * factors_P[pair])
    return torch.stack(rows).to(x_AK.dtype)


@triton.jit
def grouped_matmul_kernel(
    x_ptr,
    weight_ptr,
    pairs_ptr,
    experts_ptr,
    slots_ptr,
    factors_ptr,
    out_ptr,
    num_pairs,
    size_n,
    size_k,
    x_stride,
    weight_stride_x,
    weight_stride_n,
    DIVIDE: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """BLOCK_N outputs of a block of slots. With GATED the rows of `weight` from `size_n` on are those of up."""
    block = tl.program_id(1)
    if block * BLOCK >= tl.load(slots_ptr):
        return
    expert = tl.load(experts_ptr + block).to(tl.int64)
    pairs = tl.load(pairs_ptr + block * BLOCK + tl.arange(0, BLOCK))
    taken = pairs < num_pairs
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    exists = outputs < size_n

    rows = (pairs // DIVIDE).to(tl.int64) * x_stride
    x_at = x_ptr + rows[:, None] + inner[None, :]
    weight_at = weight_ptr + expert * weight_stride_x + (outputs * weight_stride_n)[None, :] + inner[:, None]
    up_at = weight_at + size_n * weight_stride_n
    sums = tl.zeros((BLOCK, BLOCK_N), tl.float32)
    ups = tl.zeros((BLOCK, BLOCK_N), tl.float32)
    for first in range(0, size_k, BLOCK_K):
        within = first + inner < size_k
        x = tl.load(x_at + first, taken[:, None] & within[None, :], 0.0)
        weight = tl.load(weight_at + first, exists[None, :] & within[:, None], 0.0)
        sums = tl.dot(x, weight, sums, input_precision="ieee")
        if GATED:
            up = tl.load(up_at + first, exists[None, :] & within[:, None], 0.0)
            ups = tl.dot(x, up, ups, input_precision="ieee")

    if GATED:
        sums = sums / (1.0 + tl.exp(-sums)) * ups
    if factors_ptr is not None:
        sums *= tl.load(factors_ptr + pairs, taken, 0.0)[:, None]
    out_at = out_ptr + pairs.to(tl.int64)[:, None] * size_n + outputs[None, :]
    tl.store(out_at, sums.to(out_ptr.dtype.element_ty), taken[:, None] & exists[None, :])


def grouped_matmul(
    x_AK: Tensor,
    weight_XNK: Tensor,
    aligned: Alignment,
    num_pairs: int,
    *,
    divide: int,
    gated: bool = False,
    factors_P: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """[P, N]: row p is `weight[expert of p] @ x[p // divide]`, times `factors[p]` if there are any.

    With `gated` the first half of the weights' rows are gates, and it is [P, F]: silu(gate) * up. Rows of pairs without
    an expert are not written. Input, weights and result have one 16-bit or 32-bit float type; factors are float32.
    """
    size_k, size_n = x_AK.shape[1], weight_XNK.shape[1] // (2 if gated else 1)
    assert x_AK.dtype is weight_XNK.dtype, "input and weights have one dtype"
    assert weight_XNK.shape[2] == size_k, "weights have a column for each input"
    assert x_AK.stride(1) == weight_XNK.stride(2) == 1, "a row's numbers follow each other"
    assert size_k % 16 == 0, "the inputs are a multiple of 16"
    assert x_AK.stride(0) % 16 == weight_XNK.stride(1) % 16 == 0, "rows are multiples of 16 apart"
    assert weight_XNK[0].numel() < 2**31, "an expert's numbers have offsets of 31 bits"
    assert not gated or 2 * size_n == weight_XNK.shape[1], "as many gates as ups"
    assert len(x_AK) * divide >= num_pairs, "each pair has a row"
    out_PN = torch.empty(num_pairs, size_n, dtype=x_AK.dtype, device=x_AK.device)
    if factors_P is not None:
        assert factors_P.dtype is torch.float32, "factors are float32"
        assert factors_P.is_contiguous(), "factors follow each other"
        assert factors_P.numel() == num_pairs, "a factor for each pair"
    tile = tile or tile_for(aligned.block, gated=gated, dtype=x_AK.dtype)
    grid = (triton.cdiv(size_n, tile.n), len(aligned.experts_B))
    assert grid[1] < 2**16, "a grid has fewer than 65536 rows"
    grouped_matmul_kernel[grid](
        x_AK,
        weight_XNK,
        aligned.pairs_S,
        aligned.experts_B,
        aligned.slots_1,
        factors_P,
        out_PN,
        num_pairs,
        size_n,
        size_k,
        x_AK.stride(0),
        weight_XNK.stride(0),
        weight_XNK.stride(1),
        DIVIDE=divide,
        GATED=gated,
        BLOCK=aligned.block,
        BLOCK_N=tile.n,
        BLOCK_K=tile.k,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out_PN
