"""The log-probabilities of each row's token, of the most probable ones, and of some by id, on a GPU.

What a row wants is its slot's. Candidates stand as in `actorlm.logprobs`: the token itself, then the most probable
ones, best first and of equals the lowest id first, then those by id. The rank counts the tokens that are at least as
probable.

The logits are read once, and no probabilities are stored: programs leave the highest logit, the sum of exponentials,
the rank's share and the best few tokens of each block of the vocabulary, and one program for each row merges these.

Legend: S rows, V vocabulary, R slots, N most probable ones at most, M ids at most, C = 1 + N + M candidates, B blocks.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from actorlm.kernels.gpu.columns import check_column
from actorlm.kernels.gpu.ordered import HIGHEST, key_of

BLOCK, NUM_WARPS = 4096, 8
NONE = -1
WORST = tl.constexpr(-(2**63))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What each slot wants to know."""

    counts_R: Tensor
    """int32; how many most probable tokens, at most N; -1 is nothing at all."""
    ids_RM: Tensor
    """int32; further tokens, -1 where there are fewer."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Of each row; one that wants nothing leaves them as they were.

    Places for more than a row has asked for have id -1 and log-probability -inf.
    """

    ids_SC: Tensor
    """int32"""
    values_SC: Tensor
    """float32; not numbers if the row's logits are none."""
    ranks_S: Tensor
    """int32"""

    @classmethod
    def none(cls, rows: int, most_probable: int, by_id: int, device: str = "cpu") -> "Candidates":
        """For so many rows."""
        ids_SC = torch.full((rows, 1 + most_probable + by_id), NONE, dtype=torch.int32, device=device)
        values_SC = torch.full(ids_SC.shape, float("-inf"), device=device)
        return cls(ids_SC, values_SC, torch.zeros(rows, dtype=torch.int32, device=device))


def reference(logits_SV: Tensor, slots_S: Tensor, tokens_S: Tensor, wanted: Wanted, out: Candidates) -> None:
    """See `logprobs`. Sorts, in float64."""
    by_id = wanted.ids_RM.shape[1]
    values_SV = logits_SV.double().log_softmax(dim=-1)
    for row, (slot, token) in enumerate(zip(slots_S.tolist(), tokens_S.tolist(), strict=True)):
        count = NONE if slot < 0 else int(wanted.counts_R[slot])
        if count < 0:
            continue
        best = logits_SV[row].sort(descending=True, stable=True).indices[:count].tolist()
        padding = [NONE] * (out.ids_SC.shape[1] - 1 - by_id - len(best))
        ids_C = torch.tensor([token, *best, *padding, *wanted.ids_RM[slot].tolist()])
        out.ids_SC[row] = ids_C
        out.values_SC[row] = values_SV[row][ids_C.clamp(min=0)].masked_fill(ids_C < 0, float("-inf"))
        out.ranks_S[row] = (logits_SV[row] >= logits_SV[row, token]).sum()


@triton.jit
def _wanted_of(slots_ptr, counts_ptr, row, N: tl.constexpr):
    slot = tl.load(slots_ptr + row)
    count = tl.load(counts_ptr + slot, mask=slot >= 0, other=-1)
    return slot, tl.minimum(count, N)


@triton.jit
def logprobs_part_kernel(
    logits_ptr,
    slots_ptr,
    tokens_ptr,
    counts_ptr,
    highest_ptr,
    sums_ptr,
    ranks_ptr,
    keys_ptr,
    size,
    row_stride,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One block of one row a program. Keys are unique, in the order of logits; of equals the lowest id is highest."""
    row = tl.program_id(0).to(tl.int64)
    _, count = _wanted_of(slots_ptr, counts_ptr, row, N)
    if count < 0:
        return
    row_ptr = logits_ptr + row * row_stride
    part = row * tl.num_programs(1) + tl.program_id(1)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(row_ptr + ids, mask=ids < size, other=float("-inf")).to(tl.float32)
    highest = tl.max(logits, axis=0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    tl.store(highest_ptr + part, highest)
    tl.store(sums_ptr + part, tl.sum(tl.exp(logits - base), axis=0))
    own = tl.load(row_ptr + tl.load(tokens_ptr + row)).to(tl.float32)
    tl.store(ranks_ptr + part, tl.sum(((logits >= own) & (ids < size)).to(tl.int32), axis=0))
    keys = (key_of(logits).to(tl.int64) << 32) | (ids ^ HIGHEST).to(tl.int64)
    keys = tl.where(ids < size, keys, WORST)
    for n in range(count):
        best = tl.max(keys, axis=0)
        tl.store(keys_ptr + part * N + n, best)
        keys = tl.where(keys == best, WORST, keys)


@triton.jit
def logprobs_merge_kernel(
    logits_ptr,
    slots_ptr,
    tokens_ptr,
    counts_ptr,
    wanted_ids_ptr,
    highest_ptr,
    sums_ptr,
    part_ranks_ptr,
    keys_ptr,
    ids_ptr,
    values_ptr,
    ranks_ptr,
    row_stride,
    parts,
    N: tl.constexpr,
    M: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """One row a program. PARTS and WIDTH are powers of two, from the number of parts and from N and M on."""
    row = tl.program_id(0).to(tl.int64)
    slot, count = _wanted_of(slots_ptr, counts_ptr, row, N)
    if count < 0:
        return
    row_ptr = logits_ptr + row * row_stride
    ids_ptr += row * (1 + N + M)
    values_ptr += row * (1 + N + M)
    part = tl.arange(0, PARTS)
    highest_P = tl.load(highest_ptr + row * parts + part, mask=part < parts, other=float("-inf"))
    sums_P = tl.load(sums_ptr + row * parts + part, mask=part < parts, other=0.0)
    ranks_P = tl.load(part_ranks_ptr + row * parts + part, mask=part < parts, other=0)
    highest = tl.max(highest_P, axis=0)
    log_total = tl.log(tl.sum(sums_P * tl.exp(highest_P - highest), axis=0))
    tl.store(ranks_ptr + row, tl.sum(ranks_P, axis=0))
    token = tl.load(tokens_ptr + row)
    tl.store(ids_ptr, token)
    tl.store(values_ptr, tl.load(row_ptr + token).to(tl.float32) - highest - log_total)
    if N > 0:
        lanes = tl.arange(0, PARTS * WIDTH)
        valid = (lanes // WIDTH < parts) & (lanes % WIDTH < count)
        keys = tl.load(keys_ptr + (row * parts + lanes // WIDTH) * N + lanes % WIDTH, mask=valid, other=WORST)
        for n in range(N):
            best = tl.max(keys, axis=0)
            is_token = (n < count) & (best != WORST)
            best_id = tl.where(is_token, best.to(tl.int32) ^ HIGHEST, -1)
            logit = tl.load(row_ptr + best_id, mask=is_token, other=float("-inf")).to(tl.float32)
            tl.store(ids_ptr + 1 + n, best_id)
            tl.store(values_ptr + 1 + n, tl.where(is_token, logit - highest - log_total, float("-inf")))
            keys = tl.where(keys == best, WORST, keys)
    if M > 0:
        lanes = tl.arange(0, WIDTH)
        wanted = tl.load(wanted_ids_ptr + slot.to(tl.int64) * M + lanes, mask=lanes < M, other=-1)
        logits = tl.load(row_ptr + wanted, mask=wanted >= 0, other=float("-inf")).to(tl.float32)
        tl.store(ids_ptr + 1 + N + lanes, wanted, mask=lanes < M)
        tl.store(
            values_ptr + 1 + N + lanes,
            tl.where(wanted >= 0, logits - highest - log_total, float("-inf")),
            mask=lanes < M,
        )


def logprobs(
    logits_SV: Tensor, slots_S: Tensor, tokens_S: Tensor, wanted: Wanted, out: Candidates, block: int = BLOCK
) -> None:
    """Writes the candidates of each row.

    `slots_S` int32 says what a row wants (-1 is padding), `tokens_S` int32 are the tokens that were chosen. Logits have
    any float type, a row's are dense. Fits a CUDA graph: all that varies lies on the device.
    """
    _check(logits_SV, slots_S, tokens_S, wanted, out)
    rows, size = logits_SV.shape
    parts, by_id = triton.cdiv(size, block), wanted.ids_RM.shape[1]
    most_probable = out.ids_SC.shape[1] - 1 - by_id
    merged = (
        logits_SV.new_empty(rows, parts, dtype=torch.float32),
        logits_SV.new_empty(rows, parts, dtype=torch.float32),
        logits_SV.new_empty(rows, parts, dtype=torch.int32),
        logits_SV.new_empty(rows, parts, most_probable, dtype=torch.int64),
    )
    inputs = (logits_SV, slots_S, tokens_S, wanted.counts_R)
    stride = logits_SV.stride(0)
    logprobs_part_kernel[(rows, parts)](
        *inputs, *merged, size, stride, N=most_probable, BLOCK=block, num_warps=NUM_WARPS
    )
    logprobs_merge_kernel[(rows,)](
        *inputs,
        wanted.ids_RM,
        *merged,
        out.ids_SC,
        out.values_SC,
        out.ranks_S,
        stride,
        parts,
        N=most_probable,
        M=by_id,
        PARTS=triton.next_power_of_2(parts),
        WIDTH=triton.next_power_of_2(max(most_probable, by_id, 1)),
        num_warps=NUM_WARPS,
    )


def _check(logits_SV: Tensor, slots_S: Tensor, tokens_S: Tensor, wanted: Wanted, out: Candidates) -> None:
    rows = len(logits_SV)
    slots, by_id = wanted.ids_RM.shape
    width = out.ids_SC.shape[1]
    assert logits_SV.is_floating_point(), "logits are floats"
    assert logits_SV.stride(1) == 1, "a row's logits are dense"
    check_column("slots_S", slots_S, torch.int32, rows)
    check_column("tokens_S", tokens_S, torch.int32, rows)
    check_column("counts_R", wanted.counts_R, torch.int32, slots)
    check_column("ranks_S", out.ranks_S, torch.int32, rows)
    assert width >= 1 + by_id, "candidates are the token, the most probable ones and those by id"
    assert wanted.ids_RM.dtype is out.ids_SC.dtype is torch.int32, "ids are int32"
    assert out.values_SC.dtype is torch.float32, "values_SC is float32"
    assert out.ids_SC.shape == out.values_SC.shape == (rows, width), "there are C candidates for each row"
    assert all(t.is_contiguous() for t in (wanted.ids_RM, out.ids_SC, out.values_SC)), "candidates are dense"
