"""Multi-head latent attention (DeepSeek V2, V3) when decoding: one token a sequence, heads share the cached vectors.

The cache has for each token a latent vector and the rotated part of its key. Queries are absorbed: their first L
numbers were multiplied with the projection from latent vectors to keys, so that they meet latent vectors directly, and
the last R are rotated. Outputs are weighted means of latent vectors; the projection to values comes after. Keys are
divided among programs as in `split_attention.py`.

Legend: S sequences, n heads, L size of a latent vector, R of the rotated part, X = L + R, b blocks of 16 tokens, W
width of the block tables, K keys of one sequence, P splits; in the kernel M heads and N keys of a tile.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from actorlm.kernels.gpu.attention import BLOCK_SIZE, FP8, TYPES, cached_at, capped_scores, precision, softmax_step
from actorlm.kernels.gpu.merge_splits import Partials, merge_splits
from actorlm.kernels.gpu.split_attention import split_of
from actorlm.kernels.gpu.tiles import Tile


@dataclass(frozen=True, slots=True)
class LatentCache:
    """One layer's cached vectors. In fp8 a cached number times `scale` is the number."""

    latent_b16X: Tensor
    latent_size: int
    scale: float = 1.0

    def check(self, dtype: torch.dtype) -> None:
        """Asserts what the kernel relies on; `dtype` is that of the queries."""
        rotated = self.latent_b16X.shape[2] - self.latent_size
        assert self.latent_b16X.is_contiguous(), "vectors are found by counting in a contiguous cache"
        assert self.latent_b16X.shape[1] == BLOCK_SIZE, "a block has 16 vectors"
        assert dtype in TYPES, "queries are float32, float16 or bfloat16"
        assert self.latent_b16X.dtype in (dtype, FP8), "the cache has the type of the queries, or fp8 e4m3"
        assert all(part >= 16 and part & (part - 1) == 0 for part in (self.latent_size, rotated)), (
            "a latent vector and a rotated part have powers of 2 from 16"
        )


def reference(q_SnX: Tensor, cache: LatentCache, tables_SW: Tensor, lengths_S: Tensor, scale: float) -> Tensor:
    """See `latent_attention`. In float64, one sequence at a time."""
    out_SnL = torch.zeros(*q_SnX.shape[:2], cache.latent_size, dtype=q_SnX.dtype)
    for sequence, length in enumerate(lengths_S.tolist()):
        if length:
            vectors_KX = cache.latent_b16X[tables_SW[sequence].long()].flatten(0, 1)[:length].double() * cache.scale
            weights_nK = torch.softmax(q_SnX[sequence].double() @ vectors_KX.T * scale, 1)
            out_SnL[sequence] = weights_nK @ vectors_KX[:, : cache.latent_size]
    return out_SnL


@triton.jit
def latent_attention_kernel(
    means_ptr, totals_ptr, q_ptr, cache_ptr, tables_ptr, lengths_ptr, scale, cache_scale, table_width, q_stride,
    HEADS: tl.constexpr, SPLITS: tl.constexpr, L: tl.constexpr, R: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """See `latent_attention`."""
    sequence, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    length = tl.load(lengths_ptr + sequence)
    table_ptr = tables_ptr + sequence * table_width
    begin, end = split_of(0, tl.cdiv(length, N), split, SPLITS)

    heads_M, l_L, r_R = tl.program_id(1) * M + tl.arange(0, M), tl.arange(0, L), L + tl.arange(0, R)
    is_head_M1 = (heads_M < HEADS)[:, None]
    q_at_M1 = sequence * q_stride + (heads_M * (L + R))[:, None]
    q_ML = tl.load(q_ptr + q_at_M1 + l_L[None, :], mask=is_head_M1, other=0.0)
    q_MR = tl.load(q_ptr + q_at_M1 + r_R[None, :], mask=is_head_M1, other=0.0)
    highest_M = tl.full((M,), float("-inf"), tl.float32)
    total_M = tl.zeros((M,), tl.float32)
    sums_ML = tl.zeros((M, L), tl.float32)
    for tile in range(begin * N, tl.minimum(end * N, length), N):
        keys_N = tile + tl.arange(0, N)
        valid_N = keys_N < length
        at_N = cached_at(table_ptr, keys_N, valid_N, 0, 1, L + R)
        latent_NL = tl.load(cache_ptr + at_N[:, None] + l_L[None, :], mask=valid_N[:, None], other=0.0).to(q_ML.dtype)
        rotated_RN = tl.load(cache_ptr + at_N[None, :] + r_R[:, None], mask=valid_N[None, :], other=0.0).to(q_ML.dtype)
        scores_MN = tl.dot(q_MR, rotated_RN, input_precision=PRECISION)
        scores_MN = tl.dot(q_ML, tl.trans(latent_NL), scores_MN, input_precision=PRECISION)
        logits_MN = tl.where(valid_N[None, :], capped_scores(scores_MN, scale, None), float("-inf"))
        weights_MN, kept_M, highest_M, total_M = softmax_step(logits_MN, highest_M, total_M)
        sums_ML = tl.dot(weights_MN.to(q_ML.dtype), latent_NL, sums_ML * kept_M[:, None], input_precision=PRECISION)

    at_M = (sequence * HEADS + heads_M) * SPLITS + split
    divisor_M = tl.where(total_M == 0.0, 1.0, total_M)
    tl.store(totals_ptr + at_M, highest_M + tl.log2(divisor_M), mask=heads_M < HEADS)
    means_ML = sums_ML * (cache_scale / divisor_M)[:, None]
    tl.store(means_ptr + (at_M * L)[:, None] + l_L[None, :], means_ML, mask=is_head_M1)


def latent_attention(
    q_SnX: Tensor,
    cache: LatentCache,
    tables_SW: Tensor,
    lengths_S: Tensor,
    scale: float,
    tile: Tile,
    partials: Partials,
    out_SnL: Tensor | None = None,
) -> Tensor:
    """Attention of the last token of each sequence to all its vectors; [S, n, L] in the type of the queries.

    A row of length 0 gets zeros. Tables and lengths are int32, on the device.
    """
    batch, heads, vector_size = q_SnX.shape
    size = cache.latent_size
    cache.check(q_SnX.dtype)
    partials.check(batch, heads, size)
    assert cache.latent_b16X.shape[2] == vector_size, "queries and cached vectors have one size"
    assert tables_SW.dtype is lengths_S.dtype is torch.int32, "tables and lengths are int32"
    assert tables_SW.is_contiguous(), "tables follow each other"
    assert lengths_S.is_contiguous(), "lengths follow each other"
    assert len(tables_SW) == len(lengths_S) == batch, "a table and a length for each query"
    assert q_SnX.is_contiguous(), "queries follow each other"
    splits = partials.totals_SnP.shape[2]
    latent_attention_kernel[batch, triton.cdiv(heads, tile.rows), splits](
        partials.means_SnPH, partials.totals_SnP, q_SnX, cache.latent_b16X, tables_SW, lengths_S, scale * cache.scale,
        cache.scale, tables_SW.shape[1], q_SnX.stride(0), heads, splits, size, vector_size - size, tile.rows,
        tile.columns, precision(q_SnX.dtype), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if out_SnL is None:
        out_SnL = torch.empty(batch, heads, size, dtype=q_SnX.dtype, device=q_SnX.device)
    return merge_splits(partials, out_SnL)
