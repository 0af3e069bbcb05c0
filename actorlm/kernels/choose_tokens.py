"""The next token of each row from its logits: the highest, or drawn after temperature, min-p, top-k and top-p.

Torch computes probabilities in float64. The native kernel computes a token's weight in float32 and adds up in float64.

Legend: S rows, R of them drawn, V vocabulary, C candidates.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actorlm.kernels.native import Native

FIRST_CANDIDATES = 256
"""Tokens that are ranked at first; only rows whose `top_p` needs more of them rank the whole vocabulary."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Draws:
    """How each row is drawn, and the random number for it. Columns [S]."""

    temperature: Floats
    """0 takes the highest logit, the first of equals."""
    min_p: Floats
    top_p: Floats
    """1 is off."""
    top_k: NDArray[np.int64]
    """0 is off."""
    words: NDArray[np.uint64]

    @classmethod
    def greedy(cls, count: int) -> "Draws":
        """So many rows that take their highest logits."""
        zeros = np.zeros(count)
        return cls(zeros, zeros, np.ones(count), np.zeros(count, np.int64), np.zeros(count, np.uint64))

    def __getitem__(self, rows: NDArray[np.int64]) -> "Draws":
        """Of these rows."""
        return Draws(self.temperature[rows], self.min_p[rows], self.top_p[rows], self.top_k[rows], self.words[rows])


def reference(logits_SV: Tensor, draws: Draws) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """See `choose_tokens`."""
    best_S, tokens_S = (part.numpy() for part in logits_SV.max(dim=-1))
    tokens: NDArray[np.int32] = tokens_S.astype(np.int32)
    random = np.flatnonzero((draws.temperature > 0.0) & np.isfinite(best_S))
    if len(random) > 0:
        chosen = logits_SV if len(random) == len(tokens) else logits_SV[torch.from_numpy(random)]
        tokens[random] = _draw(chosen, draws[random])
    return tokens, best_S


def _draw(logits_RV: Tensor, draws: Draws) -> NDArray[np.int64]:
    return _invert(weigh(logits_RV, draws), draws.words)


def weigh(logits_RV: Tensor, draws: Draws) -> Tensor:
    """The float64 weights of the tokens, 0 for those that are out; the highest is 1.

    Temperatures are above 0, a row's highest logit is finite.
    """
    below_RV = logits_RV.double()
    below_RV -= below_RV.amax(dim=-1, keepdim=True)  # first: divided by a tiny temperature, it could be infinite
    weights_RV = below_RV.div_(_column(draws.temperature)).exp_()
    _filter(logits_RV, weights_RV, draws)
    return weights_RV


def _filter(logits_RV: Tensor, weights_RV: Tensor, draws: Draws) -> None:
    """Sets the weights of tokens that are out to 0. The highest weight of each row is 1."""
    if draws.min_p.any():
        weights_RV.masked_fill_(weights_RV < _column(draws.min_p), 0.0)
    ranked = np.flatnonzero((draws.top_k > 0) | (draws.top_p < 1.0))
    if len(ranked) == 0:
        return
    rows = torch.from_numpy(ranked)
    kept_RV = _keep_top(logits_RV[rows], weights_RV[rows], draws.top_k[ranked], draws.top_p[ranked])
    weights_RV.index_copy_(0, rows, kept_RV)


def _keep_top(logits_RV: Tensor, weights_RV: Tensor, top_k: NDArray[np.int64], top_p: Floats) -> Tensor:
    """The weights with 0 for tokens that `top_k` [R] (0 is off) or `top_p` [R] (1 is off) leave out."""
    vocab_size = logits_RV.shape[1]
    count = min(max(FIRST_CANDIDATES, int(top_k.max())), vocab_size)
    floor_R, complete_R = _floors(logits_RV, weights_RV, top_k, top_p, count)
    incomplete = np.flatnonzero(~complete_R)
    if len(incomplete) > 0:
        rows = torch.from_numpy(incomplete)
        floors, _ = _floors(logits_RV[rows], weights_RV[rows], top_k[incomplete], top_p[incomplete], vocab_size)
        floor_R[rows] = floors
    return weights_RV.masked_fill(logits_RV < floor_R[:, None], 0.0)


def _floors(
    logits_RV: Tensor, weights_RV: Tensor, top_k: NDArray[np.int64], top_p: Floats, count: int
) -> tuple[Tensor, NDArray[np.bool_]]:
    """The lowest logit [R] that stays, from the `count` highest; and whether these were enough to know it."""
    vocab_size = logits_RV.shape[1]
    best_RC, ids_RC = logits_RV.topk(count)
    k_floor_R1 = best_RC.gather(1, torch.from_numpy(np.where(top_k > 0, np.minimum(top_k, vocab_size), 1) - 1)[:, None])
    k_floor_R1[torch.from_numpy(top_k == 0)] = float("-inf")
    total_R1 = _row_sums(weights_RV.masked_fill(logits_RV < k_floor_R1, 0.0))
    weights_RC = weights_RV.gather(1, ids_RC).masked_fill_(best_RC < k_floor_R1, 0.0)
    before_RC = weights_RC.cumsum(dim=-1) - weights_RC
    needed_R1 = total_R1 * _column(top_p)
    last_R1 = (before_RC < needed_R1).sum(dim=-1, keepdim=True).clamp_(min=1) - 1
    p_floor_R1 = best_RC.gather(1, last_R1)
    off = torch.from_numpy(top_p >= 1.0)
    p_floor_R1[off] = float("-inf")
    reached_R = (before_RC + weights_RC)[:, -1] >= needed_R1[:, 0]
    return torch.maximum(k_floor_R1, p_floor_R1)[:, 0], (reached_R | off).numpy() | (count == vocab_size)


def _row_sums(weights_RV: Tensor) -> Tensor:
    """[R, 1]. numpy adds up each row by itself; in torch's sum the order of additions depends on the number of rows."""
    return torch.from_numpy(weights_RV.numpy().sum(axis=1, keepdims=True))


def _invert(weights_RV: Tensor, words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The tokens [R] at which the cumulative weights exceed the fraction of the total that the words stand for."""
    cumulative_RV = weights_RV.cumsum(dim=-1)
    total_R1 = cumulative_RV[:, -1:]
    target_R1 = _column((words >> np.uint64(11)).astype(np.float64) * 2.0**-53) * total_R1
    below_R1 = torch.minimum(target_R1, torch.nextafter(total_R1, torch.zeros_like(total_R1)))
    tokens: NDArray[np.int64] = torch.searchsorted(cumulative_RV, below_R1, right=True)[:, 0].numpy()
    return tokens


def _column(numbers: Floats) -> Tensor:
    return torch.from_numpy(numbers)[:, None]


def choose_tokens(
    logits_SV: Tensor, draws: Draws, native: Native | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The chosen tokens [S], and the highest logit of each row [S]: if it is not finite, its token means nothing.

    A token is the first, in the order of ids, at which the cumulative probability exceeds the fraction on [0, 1) that
    the upper 53 bits of the row's word stand for. What a row gets depends on nothing but the row. Launches the native
    kernel, or plain torch.
    """
    assert logits_SV.dtype is torch.float32, "logits are float32"
    assert len(logits_SV) == len(draws.words), "one draw for each row"
    if native is None:
        return reference(logits_SV, draws)
    assert logits_SV.is_contiguous(), "rows follow each other"
    tokens, best = np.empty(len(logits_SV), np.int32), np.empty(len(logits_SV), np.float32)
    columns = (draws.temperature, draws.min_p, draws.top_p, draws.top_k, draws.words, tokens, best)
    assert all(column.flags.c_contiguous for column in columns), "columns are dense"
    addresses = (column.ctypes.data for column in columns)
    native.launch("choose_tokens", native.pool, logits_SV, *addresses, *logits_SV.shape)
    return tokens, best
