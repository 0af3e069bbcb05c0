"""Adds each slot's biases to the logits of its row, in place.

Legend: S rows, V vocabulary, R slots, N biases of a slot at most.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from actorlm.kernels.gpu.columns import check_column

BLOCK, NUM_WARPS = 128, 4


@dataclass(frozen=True, slots=True)
class Biases:
    """Of all slots."""

    counts_R: Tensor
    """int32; so many of a slot's are in use."""
    ids_RN: Tensor
    """int32; if an id is there twice, both biases count."""
    values_RN: Tensor
    """float32"""

    @classmethod
    def none(cls, slots: int, most: int, device: str = "cpu") -> "Biases":
        """For so many slots, with room for `most` each."""
        ids_RN = torch.zeros(slots, most, dtype=torch.int32, device=device)
        return cls(torch.zeros(slots, dtype=torch.int32, device=device), ids_RN, ids_RN.float())


def reference(logits_SV: Tensor, slots_S: Tensor, biases: Biases) -> None:
    """See `add_logit_bias`."""
    for row, slot in enumerate(slots_S.tolist()):
        count = 0 if slot < 0 else int(biases.counts_R[slot])
        for token, value in zip(biases.ids_RN[slot, :count].tolist(), biases.values_RN[slot, :count], strict=True):
            logits_SV[row, token] += value


@triton.jit
def logit_bias_kernel(
    logits_ptr, slots_ptr, counts_ptr, ids_ptr, values_ptr, row_stride, N: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """One row a program."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    count = tl.minimum(tl.load(counts_ptr + slot, mask=slot >= 0, other=0), N)
    for begin in range(0, count, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        ids = tl.load(ids_ptr + slot * N + place, mask=place < count, other=0)
        values = tl.load(values_ptr + slot * N + place, mask=place < count, other=0.0)
        tl.atomic_add(logits_ptr + row * row_stride + ids, values, mask=place < count)


def add_logit_bias(logits_SV: Tensor, slots_S: Tensor, biases: Biases) -> None:
    """Changes logits [S, V], float32. `slots_S` int32 are the rows' slots, -1 for padding.

    Fits a CUDA graph: all that varies lies on the device.
    """
    slots, most = biases.ids_RN.shape
    assert logits_SV.dtype is torch.float32, "logits are float32"
    assert logits_SV.stride(1) == 1, "a row's logits are dense"
    check_column("slots_S", slots_S, torch.int32, len(logits_SV))
    check_column("counts_R", biases.counts_R, torch.int32, slots)
    assert biases.ids_RN.dtype is torch.int32, "ids are int32"
    assert biases.values_RN.dtype is torch.float32, "biases are float32"
    assert biases.values_RN.shape == biases.ids_RN.shape, "each id has a bias"
    assert biases.ids_RN.is_contiguous(), "ids are dense"
    assert biases.values_RN.is_contiguous(), "biases are dense"
    logit_bias_kernel[(len(logits_SV),)](
        logits_SV,
        slots_S,
        biases.counts_R,
        biases.ids_RN,
        biases.values_RN,
        logits_SV.stride(0),
        N=most,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )
