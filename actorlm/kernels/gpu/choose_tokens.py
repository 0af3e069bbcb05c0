"""The next token of each row from its logits, on a GPU.

It is the highest, or drawn after temperature, min-p, top-k and top-p. Tokens are left out as in
`kernels/choose_tokens.py`; equals of the last that stays stay too. The draw differs. The CPU takes the token at which
the cumulative probability exceeds one number, which needs a sum in the order of ids. Here each token has a number of
its own, and the highest of logit / temperature + Gumbel noise wins (the Gumbel-max trick: its probabilities are the
same). So a seed gives other tokens on a GPU than on a CPU, from the same distribution. A row's token depends on its own
logits, parameters and position alone; see `gumbel.py`.

Nothing is sorted. Logits are compared as integers of the same order, and the lowest that stays is found by dividing an
interval of these in four, as often as it takes until it holds one distinct logit.

Legend: S rows, V vocabulary, R slots. A row with slot -1 is padding: its token is 0 and its best logit 0.
"""

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from actorlm.kernels import choose_tokens as cpu
from actorlm.kernels.gpu.columns import check_column
from actorlm.kernels.gpu.gumbel import noise_of, reference_noise, word_of
from actorlm.kernels.gpu.ordered import HIGHEST, LOWEST, key_of

BLOCK, NUM_WARPS = 4096, 16


@dataclass(frozen=True, slots=True)
class Draws:
    """How the rows of each slot are drawn. Columns [R]; a CUDA graph reads what they hold when it runs."""

    temperature_R: Tensor
    """float32; 0 takes the highest logit, the first of equals."""
    min_p_R: Tensor
    """float32; 0 is off."""
    top_p_R: Tensor
    """float32; 1 is off."""
    top_k_R: Tensor
    """int32; 0 is off."""
    seeds_R: Tensor
    """int64; taken as unsigned."""

    @classmethod
    def greedy(cls, count: int, device: str = "cpu") -> "Draws":
        """So many slots that take their highest logits."""
        zeros = torch.zeros(count, device=device)
        integers = torch.zeros(count, dtype=torch.int32, device=device)
        return cls(zeros, zeros.clone(), torch.ones_like(zeros), integers, integers.long())


def reference(logits_SV: Tensor, slots_S: Tensor, positions_S: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """See `choose_tokens`. Sorts, in float64."""
    best_S, tokens_S = logits_SV.max(dim=-1)
    for row, slot in enumerate(slots_S.tolist()):
        if slot < 0:
            tokens_S[row] = best_S[row] = 0
        elif draws.temperature_R[slot] > 0 and best_S[row].isfinite():
            weights_1V = cpu.weigh(logits_SV[row : row + 1], _cpu_draws(draws, slot))
            noise_V = reference_noise(int(draws.seeds_R[slot]), int(positions_S[row]), logits_SV.shape[1])
            tokens_S[row] = (weights_1V[0].log() + noise_V).argmax()
    return tokens_S.int(), best_S


def _cpu_draws(draws: Draws, slot: int) -> cpu.Draws:
    columns = (draws.temperature_R, draws.min_p_R, draws.top_p_R)
    temperature, min_p, top_p = (column[slot : slot + 1].double().numpy() for column in columns)
    top_k = draws.top_k_R[slot : slot + 1].long().numpy()
    return cpu.Draws(temperature, min_p, top_p, top_k, np.zeros(1, np.uint64))


@triton.jit
def _load(row_ptr, begin, size, BLOCK: tl.constexpr):
    ids = begin + tl.arange(0, BLOCK)
    return ids, tl.load(row_ptr + ids, mask=ids < size, other=float("-inf"))


@triton.jit
def _find_best(row_ptr, size, BLOCK: tl.constexpr):
    """The highest logit, not a number if any is none, and the first id that has it."""
    best_B = tl.full([BLOCK], float("-inf"), tl.float32)
    ids_B = tl.zeros([BLOCK], tl.int32)
    none_B = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, size, BLOCK):
        ids, logits = _load(row_ptr, begin, size, BLOCK)
        none_B |= (logits != logits).to(tl.int32)  # noqa: PLR0124 - only what is no number differs from itself
        ids_B = tl.where(logits > best_B, ids, ids_B)
        best_B = tl.where(logits > best_B, logits, best_B)
    best = tl.max(best_B, axis=0)
    token = tl.min(tl.where(best_B == best, ids_B, size), axis=0)
    has_none = tl.max(none_B, axis=0) > 0
    return tl.where(has_none, float("nan"), best), tl.where(has_none, 0, tl.minimum(token, size - 1))


@triton.jit
def _weights(logits, best, temperature, min_p):
    weights = tl.exp((logits - best) / temperature)
    return tl.where(weights < min_p, 0.0, weights)


@triton.jit
def _sum_weights(row_ptr, size, best, temperature, min_p, floor, BLOCK: tl.constexpr):
    """The weights of all tokens whose key is at least `floor`."""
    sum_B = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, size, BLOCK):
        _, logits = _load(row_ptr, begin, size, BLOCK)
        sum_B += tl.where(key_of(logits) >= floor, _weights(logits, best, temperature, min_p), 0.0)
    return tl.sum(sum_B, axis=0)


@triton.jit
def _measure(
    row_ptr, size, best, temperature, min_p, low, first, second, third, high, COUNTS: tl.constexpr, BLOCK: tl.constexpr
):
    """The weights (if COUNTS, the number) of the tokens from three keys on, and the outermost keys from low to high."""
    first_B = tl.zeros([BLOCK], tl.float32)
    second_B = tl.zeros([BLOCK], tl.float32)
    third_B = tl.zeros([BLOCK], tl.float32)
    lowest_B = tl.full([BLOCK], HIGHEST, tl.int32)
    highest_B = tl.full([BLOCK], LOWEST, tl.int32)
    for begin in range(0, size, BLOCK):
        ids, logits = _load(row_ptr, begin, size, BLOCK)
        keys = key_of(logits)
        weights = tl.where(ids < size, 1.0, 0.0) if COUNTS else _weights(logits, best, temperature, min_p)
        first_B += tl.where(keys >= first, weights, 0.0)
        second_B += tl.where(keys >= second, weights, 0.0)
        third_B += tl.where(keys >= third, weights, 0.0)
        lowest_B = tl.minimum(lowest_B, tl.where(keys >= low, keys, HIGHEST))
        highest_B = tl.maximum(highest_B, tl.where(keys < high, keys, LOWEST))
    lowest, highest = tl.min(lowest_B, axis=0), tl.max(highest_B, axis=0)
    return tl.sum(first_B, axis=0), tl.sum(second_B, axis=0), tl.sum(third_B, axis=0), lowest, highest


@triton.jit
def _find_floor(row_ptr, size, best, temperature, min_p, floor, needed, COUNTS: tl.constexpr, BLOCK: tl.constexpr):
    """The highest key, from `floor` on, such that the tokens from it on weigh `needed` or more; or so many, if COUNTS.

    The tokens from `low` on always do, those from `high` on never. Keys are added up in int64: int32 overflows.
    """
    low = floor.to(tl.int64)
    high = key_of(best).to(tl.int64) + 1
    while high - low > 1:
        first = low + tl.maximum((high - low) // 4, 1)
        second = low + (high - low) // 2
        third = low + tl.maximum((high - low) * 3 // 4, 1)
        weight_first, weight_second, weight_third, lowest, highest = _measure(
            row_ptr,
            size,
            best,
            temperature,
            min_p,
            low.to(tl.int32),
            first.to(tl.int32),
            second.to(tl.int32),
            third.to(tl.int32),
            high,
            COUNTS,
            BLOCK,
        )
        if weight_third >= needed:
            low = third
        elif weight_second >= needed:
            low = second
            high = third
        elif weight_first >= needed:
            low = first
            high = second
        else:
            high = first
        low = tl.maximum(low, lowest.to(tl.int64))
        high = tl.minimum(high, highest.to(tl.int64) + 1)
    return low.to(tl.int32)


@triton.jit
def _draw(row_ptr, size, best, temperature, min_p, floor, word, BLOCK: tl.constexpr):
    """The id with the highest noisy logit among those that stay."""
    score_B = tl.full([BLOCK], float("-inf"), tl.float32)
    ids_B = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, size, BLOCK):
        ids, logits = _load(row_ptr, begin, size, BLOCK)
        stays = (key_of(logits) >= floor) & (_weights(logits, best, temperature, min_p) > 0)
        if tl.max(stays.to(tl.int32), axis=0) > 0:  # most blocks have none where tokens are left out
            scores = tl.where(stays, (logits - best) / temperature + noise_of(word, ids), float("-inf"))
            ids_B = tl.where(scores > score_B, ids, ids_B)
            score_B = tl.maximum(scores, score_B)
    return tl.min(tl.where(score_B == tl.max(score_B, axis=0), ids_B, size), axis=0)


@triton.jit
def choose_tokens_kernel(
    logits_ptr,
    slots_ptr,
    positions_ptr,
    temperature_ptr,
    min_p_ptr,
    top_p_ptr,
    top_k_ptr,
    seeds_ptr,
    tokens_ptr,
    best_ptr,
    size,
    row_stride,
    BLOCK: tl.constexpr,
) -> None:
    """See `choose_tokens`. One row a program."""
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    if slot < 0:
        tl.store(tokens_ptr + row, 0)
        tl.store(best_ptr + row, 0.0)
        return
    row_ptr = logits_ptr + row.to(tl.int64) * row_stride
    best, token = _find_best(row_ptr, size, BLOCK)
    tl.store(best_ptr + row, best)
    tl.store(tokens_ptr + row, token)
    temperature = tl.load(temperature_ptr + slot)
    if (temperature > 0) & (best - best == 0):
        temperature = tl.maximum(temperature, 1e-30)  # a division by less than that may be one by zero
        min_p = tl.load(min_p_ptr + slot)
        top_p = tl.load(top_p_ptr + slot)
        top_k = tl.load(top_k_ptr + slot)
        floor = tl.full([], LOWEST, tl.int32)
        if (top_k > 0) & (top_k < size):
            floor = _find_floor(
                row_ptr, size, best, temperature, min_p, floor, top_k.to(tl.float32), COUNTS=True, BLOCK=BLOCK
            )
        if top_p < 1:
            needed = top_p * _sum_weights(row_ptr, size, best, temperature, min_p, floor, BLOCK)
            floor = _find_floor(row_ptr, size, best, temperature, min_p, floor, needed, COUNTS=False, BLOCK=BLOCK)
        seed = tl.load(seeds_ptr + slot)
        word = word_of(seed, tl.load(positions_ptr + row))
        tl.store(tokens_ptr + row, _draw(row_ptr, size, best, temperature, min_p, floor, word, BLOCK))


def choose_tokens(
    logits_SV: Tensor,
    slots_S: Tensor,
    positions_S: Tensor,
    draws: Draws,
    tokens_S: Tensor,
    best_S: Tensor,
    block: int = BLOCK,
    num_warps: int = NUM_WARPS,
) -> None:
    """Writes the chosen tokens [S] and the highest logit of each row [S]: if it is not finite, its token means nothing.

    `slots_S` int32 says whose parameters a row has, `positions_S` int64 the index of the new token in its sequence. One
    program for each row, whose logits are float32 and dense. Fits a CUDA graph: all that varies lies on the device.
    """
    rows, size = logits_SV.shape
    assert logits_SV.dtype is torch.float32, "logits are float32"
    assert logits_SV.stride(1) == 1, "a row's logits are dense"
    assert size < 2**24, "counts of tokens are exact in float32"
    check_column("slots_S", slots_S, torch.int32, rows)
    check_column("positions_S", positions_S, torch.int64, rows)
    check_column("tokens_S", tokens_S, torch.int32, rows)
    check_column("best_S", best_S, torch.float32, rows)
    slots = len(draws.temperature_R)
    columns = (draws.temperature_R, draws.min_p_R, draws.top_p_R, draws.top_k_R, draws.seeds_R)
    for name, column, dtype in zip(
        Draws.__slots__, columns, [torch.float32] * 3 + [torch.int32, torch.int64], strict=True
    ):
        check_column(name, column, dtype, slots)
    choose_tokens_kernel[(rows,)](
        logits_SV,
        slots_S,
        positions_S,
        *columns,
        tokens_S,
        best_S,
        size,
        logits_SV.stride(0),
        BLOCK=block,
        num_warps=num_warps,
    )
