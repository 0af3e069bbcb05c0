"""What the attention kernels share: the cache as they see it, a step's sequences, and the softmax of a layer.

All numbers that change from step to step lie on the device, so that a CUDA graph can replay a launch.

Legend: T tokens of the step, S sequences, n query heads, k key-value heads, g = n / k, b blocks of 16 keys, H head
size, W width of the block tables, N keys of one sequence; in a kernel M rows and N keys of a tile, D = H padded to a
power of 2.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_SIZE = 16
FP8 = torch.float8_e4m3fn
TYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Cache:
    """One layer's keys, then its values. In fp8 a cached number times its scale is the number."""

    kv_2bk16H: Tensor
    key_scale: float = 1.0
    value_scale: float = 1.0

    def check(self, dtype: torch.dtype) -> None:
        """Asserts what the kernels rely on; `dtype` is that of the queries."""
        assert self.kv_2bk16H.is_contiguous(), "keys and values are found by counting in a contiguous cache"
        assert self.kv_2bk16H.shape[3] == BLOCK_SIZE, "a block has 16 keys"
        assert dtype in TYPES, "queries are float32, float16 or bfloat16"
        assert self.kv_2bk16H.dtype in (dtype, FP8), "the cache has the type of the queries, or fp8 e4m3"

    def of_sequence(self, table_W: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values [N, k, H] of a sequence in float64, for references."""
        both = self.kv_2bk16H[:, table_W.long()].double().transpose(2, 3).flatten(1, 2)[:, :length]
        return both[0] * self.key_scale, both[1] * self.value_scale


@dataclass(frozen=True, slots=True)
class Sequences:
    """Whose tokens a step has. int32, on the device of the queries.

    Sequence s has the tokens from `starts_S1[s]` up to `starts_S1[s + 1]`, the last of its `lengths_S[s]` keys. A row
    that pads a batch has length 0; its outputs are zeros.
    """

    tables_SW: Tensor
    """In which blocks of the cache its keys are."""
    lengths_S: Tensor
    starts_S1: Tensor

    def check(self) -> None:
        """Asserts what the kernels rely on."""
        tensors = (self.tables_SW, self.lengths_S, self.starts_S1)
        assert all(t.dtype is torch.int32 for t in tensors), "tables, lengths and starts are int32"
        assert all(t.is_contiguous() for t in tensors), "tables, lengths and starts are contiguous"
        assert len(self.tables_SW) == len(self.lengths_S) == len(self.starts_S1) - 1, "one of each for each sequence"


@dataclass(frozen=True, slots=True)
class Softmax:
    """How scores become weights.

    They are scaled, become `soft_cap` * tanh(score / `soft_cap`), and count for the last `window` keys alone, the
    query's own among them. A head's sink is the logit of one more key, which has no value.
    """

    scale: float
    soft_cap: float | None = None
    window: int | None = None
    sinks_n: Tensor | None = None

    def check(self, num_heads: int) -> None:
        """Asserts what the kernels rely on."""
        assert self.soft_cap is None or self.soft_cap > 0, "a soft cap is positive"
        assert self.window is None or self.window > 0, "a window has a key at least"
        if self.sinks_n is not None:
            assert self.sinks_n.shape == (num_heads,), "one sink for each query head"
            assert self.sinks_n.dtype is torch.float32, "sinks are float32"
            assert self.sinks_n.is_contiguous(), "sinks follow each other"


def reference(q_TnH: Tensor, cache: Cache, sequences: Sequences, softmax: Softmax) -> Tensor:
    """Attention of each token, one at a time, in float64; [T, n, H] in the type of the queries.

    Tokens of no sequence get zeros.
    """
    out_TnH = torch.zeros(q_TnH.shape, dtype=q_TnH.dtype)
    starts = sequences.starts_S1.tolist()
    for sequence, length in enumerate(sequences.lengths_S.tolist()):
        k_NkH, v_NkH = cache.of_sequence(sequences.tables_SW[sequence], length)
        begin, end = starts[sequence], starts[sequence + 1]
        for token in range(begin, end if length else begin):
            visible = length - (end - 1 - token)
            oldest = 0 if softmax.window is None else max(0, visible - softmax.window)
            out_TnH[token] = _attend(q_TnH[token].double(), k_NkH[oldest:visible], v_NkH[oldest:visible], softmax)
    return out_TnH


def _attend(q_nH: Tensor, k_NkH: Tensor, v_NkH: Tensor, softmax: Softmax) -> Tensor:
    """One token's attention to keys that it sees all."""
    group = len(q_nH) // k_NkH.shape[1]
    k_NnH, v_NnH = k_NkH.repeat_interleave(group, 1), v_NkH.repeat_interleave(group, 1)
    logits_nN = torch.einsum("nh,Nnh->nN", q_nH, k_NnH) * softmax.scale
    if softmax.soft_cap is not None:
        logits_nN = softmax.soft_cap * torch.tanh(logits_nN / softmax.soft_cap)
    if softmax.sinks_n is not None:
        logits_nN = torch.cat((logits_nN, softmax.sinks_n.double()[:, None]), 1)
    weights_nN = torch.softmax(logits_nN, 1)[:, : len(k_NkH)]
    return torch.einsum("nN,Nnh->nh", weights_nN, v_NnH)


@triton.jit
def capped_scores(scores, scale, SOFT_CAP: tl.constexpr):
    """Logits in powers of 2 of scores."""
    if SOFT_CAP is None:
        logits = scores * (scale * 1.4426950408889634)
    else:
        # tanh(x) = 1 - 2 / (exp(2 x) + 1), which holds at both infinities
        powers = tl.exp2(scores * (scale * 2.0 * 1.4426950408889634 / SOFT_CAP))
        logits = (SOFT_CAP * 1.4426950408889634) * (1.0 - 2.0 / (powers + 1.0))
    return logits


@triton.jit
def softmax_step(logits_MN, highest_M, total_M):
    """One step of an online softmax: weights, what to multiply earlier sums with, and the new highest logit and total.

    Rows that have seen no key yet have the highest logit -inf and the total 0.
    """
    new_highest_M = tl.maximum(highest_M, tl.max(logits_MN, 1))
    base_M = tl.where(new_highest_M == float("-inf"), 0.0, new_highest_M)
    weights_MN = tl.exp2(logits_MN - base_M[:, None])
    kept_M = tl.exp2(highest_M - base_M)
    return weights_MN, kept_M, new_highest_M, total_M * kept_M + tl.sum(weights_MN, 1)


def precision(dtype: torch.dtype) -> str:
    """How `tl.dot` multiplies: float32 without shortcuts; other types ignore it."""
    return "ieee" if dtype is torch.float32 else "tf32"


@triton.jit
def cached_at(tables_ptr, keys_N, valid_N, kv_head, KV_HEADS: tl.constexpr, H: tl.constexpr):
    """Where the cache has these keys of a sequence, whose table begins at `tables_ptr`."""
    blocks_N = tl.load(tables_ptr + keys_N // 16, mask=valid_N, other=0)
    return ((blocks_N.to(tl.int64) * KV_HEADS + kv_head) * 16 + keys_N % 16) * H


@triton.jit
def attend(
    q_MD, highest_M, total_M, kv_ptr, values_at, table_ptr, kv_head, positions_M, oldest, begin, end, scale,
    SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr, KV_HEADS: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax over the keys from `begin` up to `end`: each row's highest logit, total and weighted sum.

    It begins at a multiple of N. Keys before `oldest` are seen by no row, and not read: their blocks may be gone.
    """
    d_D = tl.arange(0, D)
    sums_MD = tl.zeros((M, D), tl.float32)
    for tile in range(begin, end, N):
        keys_N = tile + tl.arange(0, N)
        valid_N = (keys_N >= oldest) & (keys_N < end)
        at_N = cached_at(table_ptr, keys_N, valid_N, kv_head, KV_HEADS, H)
        mask_DN = (d_D < H)[:, None] & valid_N[None, :]
        k_DN = tl.load(kv_ptr + at_N[None, :] + d_D[:, None], mask=mask_DN, other=0.0).to(q_MD.dtype)
        logits_MN = capped_scores(tl.dot(q_MD, k_DN, input_precision=PRECISION), scale, SOFT_CAP)
        visible_MN = (keys_N[None, :] <= positions_M[:, None]) & valid_N[None, :]
        if WINDOW is not None:
            visible_MN &= keys_N[None, :] > positions_M[:, None] - WINDOW
        logits_MN = tl.where(visible_MN, logits_MN, float("-inf"))
        weights_MN, kept_M, highest_M, total_M = softmax_step(logits_MN, highest_M, total_M)
        mask_ND = valid_N[:, None] & (d_D < H)[None, :]
        v_ND = tl.load(kv_ptr + values_at + at_N[:, None] + d_D[None, :], mask=mask_ND, other=0.0).to(q_MD.dtype)
        sums_MD = tl.dot(weights_MN.to(q_MD.dtype), v_ND, sums_MD * kept_M[:, None], input_precision=PRECISION)
    return highest_M, total_M, sums_MD
