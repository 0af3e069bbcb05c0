"""Decoding: attention of one token a sequence to the paged cache, each sequence's keys divided among several programs.

With few sequences one program for each would leave most multiprocessors idle. The number of splits follows from the
size of the batch (`num_splits`), so a row's last bits may differ between buckets of batches, never within one.

Legend: as in `attention.py`; P splits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from actorlm.kernels.gpu import attention
from actorlm.kernels.gpu.attention import Cache, Sequences, Softmax, attend
from actorlm.kernels.gpu.merge_splits import Partials, merge_splits
from actorlm.kernels.gpu.tiles import Tile


def reference(q_SnH: Tensor, cache: Cache, tables_SW: Tensor, lengths_S: Tensor, softmax: Softmax) -> Tensor:
    """See `split_attention`."""
    starts_S1 = torch.arange(len(q_SnH) + 1, dtype=torch.int32)
    return attention.reference(q_SnH, cache, Sequences(tables_SW, lengths_S, starts_S1), softmax)


@triton.jit
def split_of(first, last, split, SPLITS: tl.constexpr):
    """Which of the tiles from `first` up to `last` are a split's: equally many of each, but for those at the end."""
    share = tl.cdiv(last - first, SPLITS)
    begin = first + split * share
    return begin, tl.minimum(begin + share, last)


@triton.jit
def split_attention_kernel(
    means_ptr, totals_ptr, q_ptr, kv_ptr, tables_ptr, lengths_ptr, scale, value_scale, table_width, values_at, q_stride,
    SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SPLITS: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """See `split_attention`."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    sequence, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths_ptr + sequence)
    oldest = 0
    if WINDOW is not None:
        oldest = tl.maximum(length - WINDOW, 0)
    begin, end = split_of(oldest // N, tl.cdiv(length, N), split, SPLITS)

    rows_M, d_D = tl.arange(0, M), tl.arange(0, D)
    heads_M = kv_head * GROUP + rows_M
    mask_MD = (rows_M < GROUP)[:, None] & (d_D < H)[None, :]
    q_MD = tl.load(q_ptr + sequence * q_stride + (heads_M * H)[:, None] + d_D[None, :], mask=mask_MD, other=0.0)
    highest_M, total_M, sums_MD = attend(
        q_MD, tl.full((M,), float("-inf"), tl.float32), tl.zeros((M,), tl.float32), kv_ptr, values_at,
        tables_ptr + sequence * table_width, kv_head, tl.zeros((M,), tl.int32) + length - 1, oldest, begin * N,
        tl.minimum(end * N, length), scale, SOFT_CAP, WINDOW, KV_HEADS, H, D, M, N, PRECISION,
    )  # fmt: skip

    at_M = (sequence * HEADS + heads_M) * SPLITS + split
    divisor_M = tl.where(total_M == 0.0, 1.0, total_M)
    tl.store(totals_ptr + at_M, highest_M + tl.log2(divisor_M), mask=rows_M < GROUP)
    means_MD = sums_MD * (value_scale / divisor_M)[:, None]
    tl.store(means_ptr + (at_M * H)[:, None] + d_D[None, :], means_MD, mask=mask_MD)


def split_attention(
    q_SnH: Tensor,
    cache: Cache,
    tables_SW: Tensor,
    lengths_S: Tensor,
    softmax: Softmax,
    tile: Tile,
    partials: Partials,
    out_SnH: Tensor | None = None,
) -> Tensor:
    """Attention of the last token of each sequence to all its keys; [S, n, H] in the type of the queries.

    Tables and lengths are those of `Sequences`; a row of length 0 gets zeros. Rows of the queries may lie apart.
    """
    (batch, heads, size), kv_heads = q_SnH.shape, cache.kv_2bk16H.shape[2]
    cache.check(q_SnH.dtype)
    softmax.check(heads)
    partials.check(batch, heads, size)
    assert tables_SW.dtype is lengths_S.dtype is torch.int32, "tables and lengths are int32"
    assert tables_SW.is_contiguous(), "tables follow each other"
    assert lengths_S.is_contiguous(), "lengths follow each other"
    assert len(tables_SW) == len(lengths_S) == batch, "a table and a length for each query"
    assert cache.kv_2bk16H.shape[4] == size, "queries and keys have one size"
    assert heads % kv_heads == 0, "key-value heads are shared by equally many query heads"
    assert q_SnH.stride(2) == 1, "numbers of a head follow each other"
    assert q_SnH.stride(1) == size, "heads of a row follow each other"
    splits = partials.totals_SnP.shape[2]
    split_attention_kernel[batch, kv_heads, splits](
        partials.means_SnPH, partials.totals_SnP, q_SnH, cache.kv_2bk16H, tables_SW, lengths_S,
        softmax.scale * cache.key_scale, cache.value_scale, tables_SW.shape[1], cache.kv_2bk16H[0].numel(),
        q_SnH.stride(0), softmax.soft_cap, softmax.window, heads, kv_heads, splits, size, triton.next_power_of_2(size),
        max(tile.rows, triton.next_power_of_2(heads // kv_heads)), tile.columns, attention.precision(q_SnH.dtype),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if out_SnH is None:
        out_SnH = torch.empty(batch, heads, size, dtype=q_SnH.dtype, device=q_SnH.device)
    return merge_splits(partials, out_SnH, softmax.sinks_n)
