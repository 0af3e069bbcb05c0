"""Penalties for tokens that a sequence has already, in place, with the meaning of `execution/penalties.py`.

Of a token that stands in the prompt or the output, a positive logit is divided by `repetition` and any other multiplied
by it. Then `frequency` is subtracted once for each time that the output has the token, `presence` once if it has it.

Each slot has a count for every token of the vocabulary and a bit for those in its prompt. They are kept only for slots
with a penalty: `put` fills them when a request enters, `append_tokens` counts what a step chose.

Legend: S rows, V vocabulary, R slots, W words of 32 ids.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from actorlm.kernels.gpu.bitmask import bits_of, num_words, pack
from actorlm.kernels.gpu.columns import check_column

BLOCK, NUM_WARPS = 2048, 8


@dataclass(frozen=True, slots=True)
class Penalties:
    """Of all slots. One with repetition 1 and the others 0 has none."""

    repetition_R: Tensor
    """float32"""
    frequency_R: Tensor
    """float32"""
    presence_R: Tensor
    """float32"""
    counts_RV: Tensor
    """int32; how often the output has the token."""
    prompt_RW: Tensor
    """int32 bitmask of the prompt's tokens."""

    @classmethod
    def none(cls, slots: int, vocab_size: int, device: str = "cpu") -> "Penalties":
        """For so many slots."""
        zeros = torch.zeros(slots, device=device)
        counts_RV = torch.zeros(slots, vocab_size, dtype=torch.int32, device=device)
        prompt_RW = torch.zeros(slots, num_words(vocab_size), dtype=torch.int32, device=device)
        return cls(torch.ones_like(zeros), zeros, zeros.clone(), counts_RV, prompt_RW)

    def put(self, slot: int, prompt_ids: Tensor, generated_ids: Tensor) -> None:
        """The slot's request has these ids, which are on the device."""
        vocab_size = self.counts_RV.shape[1]
        self.counts_RV[slot] = torch.bincount(generated_ids, minlength=vocab_size)
        self.prompt_RW[slot] = pack(prompt_ids, vocab_size)


def reference(logits_SV: Tensor, slots_S: Tensor, penalties: Penalties) -> None:
    """See `apply_penalties`."""
    for row, slot in enumerate(slots_S.tolist()):
        if slot < 0:
            continue
        counts_V, words_W = penalties.counts_RV[slot], penalties.prompt_RW[slot]
        in_prompt_V = torch.tensor([int(words_W[i // 32]) >> (i % 32) & 1 for i in range(len(counts_V))]).bool()
        logits_V, repetition = logits_SV[row].clone(), penalties.repetition_R[slot]
        repeated_V = torch.where(logits_V > 0, logits_V / repetition, logits_V * repetition)
        logits_V = torch.where(in_prompt_V | (counts_V > 0), repeated_V, logits_V)
        logits_V -= penalties.frequency_R[slot] * counts_V
        logits_V -= penalties.presence_R[slot] * (counts_V > 0)
        logits_SV[row] = logits_V


@triton.jit
def _penalties_of(slot, repetition_ptr, frequency_ptr, presence_ptr):
    """The three of a slot, none for padding."""
    repetition = tl.load(repetition_ptr + slot, mask=slot >= 0, other=1.0)
    frequency = tl.load(frequency_ptr + slot, mask=slot >= 0, other=0.0)
    presence = tl.load(presence_ptr + slot, mask=slot >= 0, other=0.0)
    return repetition, frequency, presence


@triton.jit
def penalties_kernel(
    logits_ptr,
    slots_ptr,
    repetition_ptr,
    frequency_ptr,
    presence_ptr,
    counts_ptr,
    prompt_ptr,
    size,
    words,
    row_stride,
    BLOCK: tl.constexpr,
) -> None:
    """One block of one row a program. Logits of tokens that the sequence does not have are not touched."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    repetition, frequency, presence = _penalties_of(slot, repetition_ptr, frequency_ptr, presence_ptr)
    if (repetition != 1) | (frequency != 0) | (presence != 0):
        ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        counts = tl.load(counts_ptr + slot * size + ids, mask=ids < size, other=0)
        has = ((counts > 0) | (bits_of(prompt_ptr + slot * words, ids, words) != 0)) & (ids < size)
        places = logits_ptr + row * row_stride + ids
        logits = tl.load(places, mask=has, other=0.0)
        logits = tl.where(logits > 0, logits / repetition, logits * repetition)
        logits -= frequency * counts.to(tl.float32)
        logits -= tl.where(counts > 0, presence, 0.0)
        tl.store(places, logits, mask=has)


@triton.jit
def append_tokens_kernel(
    slots_ptr,
    tokens_ptr,
    repetition_ptr,
    frequency_ptr,
    presence_ptr,
    counts_ptr,
    rows,
    size,
    BLOCK: tl.constexpr,
) -> None:
    """BLOCK rows a program."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slots = tl.load(slots_ptr + row, mask=row < rows, other=-1).to(tl.int64)
    tokens = tl.load(tokens_ptr + row, mask=row < rows, other=0)
    repetition, frequency, presence = _penalties_of(slots, repetition_ptr, frequency_ptr, presence_ptr)
    counted = (repetition != 1) | (frequency != 0) | (presence != 0)
    places = counts_ptr + slots * size + tokens
    tl.store(places, tl.load(places, mask=counted, other=0) + 1, mask=counted)


def apply_penalties(logits_SV: Tensor, slots_S: Tensor, penalties: Penalties, block: int = BLOCK) -> None:
    """Changes logits [S, V], float32. `slots_S` int32 are the rows' slots, -1 for padding.

    Fits a CUDA graph: all that varies lies on the device.
    """
    rows, size = logits_SV.shape
    assert logits_SV.dtype is torch.float32, "logits are float32"
    assert logits_SV.stride(1) == 1, "a row's logits are dense"
    assert penalties.counts_RV.shape[1] == size, "there is a count for each token"
    check_column("slots_S", slots_S, torch.int32, rows)
    penalties_kernel[(rows, triton.cdiv(size, block))](
        logits_SV,
        slots_S,
        *_columns(penalties),
        penalties.prompt_RW,
        size,
        penalties.prompt_RW.shape[1],
        logits_SV.stride(0),
        BLOCK=block,
        num_warps=NUM_WARPS,
    )


def append_tokens(slots_S: Tensor, tokens_S: Tensor, penalties: Penalties) -> None:
    """These slots, int32, each named once, have generated these tokens, int32. Slot -1 is padding.

    Fits a CUDA graph: all that varies lies on the device.
    """
    rows, block = len(slots_S), 128
    check_column("slots_S", slots_S, torch.int32, rows)
    check_column("tokens_S", tokens_S, torch.int32, rows)
    append_tokens_kernel[(triton.cdiv(rows, block),)](
        slots_S, tokens_S, *_columns(penalties), rows, penalties.counts_RV.shape[1], BLOCK=block, num_warps=4
    )


def _columns(penalties: Penalties) -> tuple[Tensor, ...]:
    """What both kernels read, checked."""
    slots, size = penalties.counts_RV.shape
    columns = (penalties.repetition_R, penalties.frequency_R, penalties.presence_R)
    for name, column in zip(("repetition_R", "frequency_R", "presence_R"), columns, strict=True):
        check_column(name, column, torch.float32, slots)
    assert penalties.counts_RV.dtype is penalties.prompt_RW.dtype is torch.int32, "counts and bitmasks are int32"
    assert penalties.prompt_RW.shape == (slots, num_words(size)), "there is a bit for each token"
    assert penalties.counts_RV.is_contiguous(), "counts are dense"
    assert penalties.prompt_RW.is_contiguous(), "bitmasks are dense"
    return *columns, penalties.counts_RV
