"""Merges what several programs found for splits of a sequence's keys.

Each split has a weighted mean of its values and the logarithm (base 2) of the total of its weights, -inf if it had no
keys.

Legend: S sequences, n query heads, P splits, H size of a value, D = H padded to a power of 2.
"""

from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_SPLITS = 64


def num_splits(batch: int, kv_heads: int, multiprocessors: int) -> int:
    """Among how many programs a sequence's keys are divided: a power of 2, for about two programs a multiprocessor.

    It follows from a bucket's size, never from lengths, so that a CUDA graph has one grid.
    """
    wanted = 2 * multiprocessors // (batch * kv_heads)
    return min(MOST_SPLITS, 1 << max(0, wanted.bit_length() - 1))


@dataclass(frozen=True, slots=True)
class Partials:
    """Where splits leave their results. All layers use it in turn."""

    means_SnPH: Tensor
    totals_SnP: Tensor

    @classmethod
    def empty(cls, batch: int, heads: int, splits: int, size: int, device: torch.device | str) -> Self:
        """Room for a batch."""
        return cls(
            torch.empty(batch, heads, splits, size, dtype=torch.float32, device=device),
            torch.empty(batch, heads, splits, dtype=torch.float32, device=device),
        )

    def check(self, batch: int, heads: int, size: int) -> None:
        """Asserts what the kernels rely on."""
        splits = self.means_SnPH.shape[2]
        assert self.means_SnPH.shape == (batch, heads, splits, size), "a mean for each head and split"
        assert self.totals_SnP.shape == (batch, heads, splits), "a total for each head and split"
        for tensor in (self.means_SnPH, self.totals_SnP):
            assert tensor.is_contiguous(), "partial results follow each other"
            assert tensor.dtype is torch.float32, "partial results are float32"


def reference(partials: Partials, sinks_n: Tensor | None, dtype: torch.dtype) -> Tensor:
    """See `merge_splits`."""
    totals_SnP = partials.totals_SnP.double().exp2()
    total_Sn = totals_SnP.sum(2) + (0.0 if sinks_n is None else sinks_n.double().exp())
    weights_SnP = totals_SnP / torch.where(total_Sn == 0, 1.0, total_Sn)[:, :, None]
    means_SnPH = torch.where(totals_SnP[..., None] == 0, 0.0, partials.means_SnPH.double())
    return torch.einsum("snp,snph->snh", weights_SnP, means_SnPH).to(dtype)


@triton.jit
def merge_splits_kernel(
    out_ptr, means_ptr, totals_ptr, sinks_ptr, HEADS: tl.constexpr, SPLITS: tl.constexpr, P: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """See `merge_splits`. P are the splits, padded."""
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = sequence * HEADS + head
    splits_P, d_D = tl.arange(0, P), tl.arange(0, D)
    totals_P = tl.load(totals_ptr + row * SPLITS + splits_P, mask=splits_P < SPLITS, other=float("-inf"))
    highest = tl.max(totals_P, 0)
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + head) * 1.4426950408889634
        highest = tl.maximum(highest, sink)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.sum(tl.exp2(totals_P - base), 0)
    if sinks_ptr is not None:
        total += tl.exp2(sink - base)
    sums_D = tl.zeros((D,), tl.float32)
    for split in range(SPLITS):
        logarithm = tl.load(totals_ptr + row * SPLITS + split)
        size = tl.where(logarithm > float("-inf"), H, 0)  # of a split without keys nothing is read
        mean_D = tl.load(means_ptr + (row * SPLITS + split) * H + d_D, mask=d_D < size, other=0.0)
        sums_D += tl.exp2(logarithm - base) * mean_D
    out_D = sums_D / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * H + d_D, out_D.to(out_ptr.dtype.element_ty), mask=d_D < H)


def merge_splits(partials: Partials, out_SnH: Tensor, sinks_n: Tensor | None = None) -> Tensor:
    """The attention of all keys, to `out`: zeros where no split had keys.

    A head's sink is the natural logarithm of one more weight, whose value is zero.
    """
    batch, heads, size = out_SnH.shape
    partials.check(batch, heads, size)
    assert out_SnH.is_contiguous(), "results follow each other"
    assert sinks_n is None or sinks_n.shape == (heads,), "one sink for each head"
    splits = partials.totals_SnP.shape[2]
    merge_splits_kernel[batch, heads](
        out_SnH, partials.means_SnPH, partials.totals_SnP, sinks_n, heads, splits, triton.next_power_of_2(splits), size,
        triton.next_power_of_2(size), num_warps=4 if size > 128 else 1,
    )  # fmt: skip
    return out_SnH
