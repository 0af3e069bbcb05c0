"""Causal attention of a step's tokens to the paged cache, prefill and decode in one launch.

A program has up to `rows / g` queries of one sequence, with the g query heads of one key-value head: each key is read
once for all of them. It finds its sequence by a binary search over the starts, so that the host need not know the
lengths: the grid has as many programs as tokens and sequences could need, and those too many end at once.

Legend: as in `attention.py`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from actorlm.kernels.gpu import attention
from actorlm.kernels.gpu.attention import Cache, Sequences, Softmax, attend
from actorlm.kernels.gpu.tiles import Tile

reference = attention.reference


@triton.jit
def sequence_of_tile(starts_ptr, num_sequences, tile, QUERIES: tl.constexpr):
    """The last sequence whose first tile is not after this one; sequence s begins at starts[s] // QUERIES + s."""
    low, high = 0, num_sequences
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(starts_ptr + middle) // QUERIES + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def paged_attention_kernel(
    out_ptr, q_ptr, kv_ptr, tables_ptr, lengths_ptr, starts_ptr, sinks_ptr, scale, value_scale, num_sequences,
    table_width, values_at, q_stride, SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr, HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr, H: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """See `paged_attention`."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    QUERIES: tl.constexpr = M // GROUP
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    sequence = sequence_of_tile(starts_ptr, num_sequences, tile, QUERIES)
    start = tl.load(starts_ptr + sequence)
    num_queries = tl.load(starts_ptr + sequence + 1) - start
    first_query = (tile - start // QUERIES - sequence) * QUERIES
    if first_query >= num_queries:
        return
    length = tl.load(lengths_ptr + sequence)

    rows_M, d_D = tl.arange(0, M), tl.arange(0, D)
    queries_M = first_query + rows_M // GROUP
    heads_M = kv_head * GROUP + rows_M % GROUP
    is_row_M = (rows_M < QUERIES * GROUP) & (queries_M < num_queries)
    positions_M = length - num_queries + queries_M
    tokens_M = (start + queries_M).to(tl.int64)
    mask_MD = is_row_M[:, None] & (d_D < H)[None, :]
    q_MD = tl.load(q_ptr + (tokens_M * q_stride + heads_M * H)[:, None] + d_D[None, :], mask=mask_MD, other=0.0)

    highest_M = tl.full((M,), float("-inf"), tl.float32)
    total_M = tl.zeros((M,), tl.float32)
    if sinks_ptr is not None:
        highest_M = tl.load(sinks_ptr + heads_M, mask=is_row_M, other=0.0) * 1.4426950408889634
        total_M += 1.0

    end = tl.minimum(length, length - num_queries + first_query + QUERIES)
    oldest = 0
    if WINDOW is not None:
        oldest = tl.maximum(length - num_queries + first_query + 1 - WINDOW, 0)
    highest_M, total_M, sums_MD = attend(
        q_MD, highest_M, total_M, kv_ptr, values_at, tables_ptr + sequence * table_width, kv_head, positions_M, oldest,
        oldest // N * N, end, scale, SOFT_CAP, WINDOW, KV_HEADS, H, D, M, N, PRECISION,
    )  # fmt: skip

    out_MD = sums_MD * (value_scale / tl.where(total_M == 0.0, 1.0, total_M))[:, None]
    out_at_M = (tokens_M * HEADS + heads_M) * H
    tl.store(out_ptr + out_at_M[:, None] + d_D[None, :], out_MD.to(out_ptr.dtype.element_ty), mask=mask_MD)


def paged_attention(
    q_TnH: Tensor, cache: Cache, sequences: Sequences, softmax: Softmax, tile: Tile, out_TnH: Tensor | None = None
) -> Tensor:
    """Attention of each token to its sequence's keys up to its own; [T, n, H] in the type of the queries.

    Rows of padding get zeros; tokens of no sequence are left as they are in `out`. Rows of the queries may lie apart,
    as those of a wider buffer do. A row's result does not depend on other sequences.
    """
    (tokens, heads, size), kv_heads = q_TnH.shape, cache.kv_2bk16H.shape[2]
    cache.check(q_TnH.dtype)
    sequences.check()
    softmax.check(heads)
    assert cache.kv_2bk16H.shape[4] == size, "queries and keys have one size"
    assert heads % kv_heads == 0, "key-value heads are shared by equally many query heads"
    assert q_TnH.stride(2) == 1, "numbers of a head follow each other"
    assert q_TnH.stride(1) == size, "heads of a token follow each other"
    queries = tile.rows // (heads // kv_heads)
    assert queries > 0, f"a tile of {tile.rows} rows has no room for {heads // kv_heads} heads"
    out_TnH = torch.empty(q_TnH.shape, dtype=q_TnH.dtype, device=q_TnH.device) if out_TnH is None else out_TnH
    assert out_TnH.shape == q_TnH.shape, "a result for each query"
    assert out_TnH.is_contiguous(), "results follow each other"
    num_sequences, width = sequences.tables_SW.shape
    paged_attention_kernel[tokens // queries + num_sequences, kv_heads](
        out_TnH, q_TnH, cache.kv_2bk16H, sequences.tables_SW, sequences.lengths_S, sequences.starts_S1, softmax.sinks_n,
        softmax.scale * cache.key_scale, cache.value_scale, num_sequences, width, cache.kv_2bk16H[0].numel(),
        q_TnH.stride(0), softmax.soft_cap, softmax.window, heads, kv_heads, size, triton.next_power_of_2(size),
        tile.rows, tile.columns, attention.precision(q_TnH.dtype),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out_TnH
