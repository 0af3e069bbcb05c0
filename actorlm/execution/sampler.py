"""Chooses the next token of each sampled row from its logits.

In this order, as vLLM does it:

1. Tokens that are out (restrictions.py) get -inf, `logit_bias` is added, penalties (penalties.py) are applied.
2. Greedy rows (`temperature` 0) take the highest float32 logit, the lowest id of equals, and are done.
3. Logits are divided by `temperature`.
4. `min_p`: tokens less probable than `min_p` times the most probable one are out.
5. `top_k`: tokens with a logit below the k-th highest of what is left are out; equals of the k-th stay.
6. `top_p`: of what is left, normalised again, the fewest most probable tokens stay whose probabilities sum to at
   least `top_p`, and equals of the last of them.
7. The token is the first, in the order of ids, at which the cumulative probability exceeds u. u is uniform on
   [0, 1): the upper 53 bits of `randomness.word(seed, position)`, where position is the index of the new token in its
   sequence.

Probabilities are float64. A row's token depends on its own logits, parameters and position alone.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actorlm.errors import ModelError
from actorlm.execution.penalties import Penalties
from actorlm.execution.ragged import Indices, Ragged
from actorlm.execution.randomness import MASK, word
from actorlm.execution.restrictions import Restrictions
from actorlm.sampling import SamplingParams

FIRST_CANDIDATES = 256
"""Tokens that are ranked at first; only rows whose `top_p` needs more of them rank the whole vocabulary."""

NO_IDS: NDArray[np.int32] = np.empty(0, np.int32)


class Sampler:
    """The parameters of all slots, in columns, and the choice."""

    def __init__(self, max_num_seqs: int, eos_token_ids: Sequence[int]) -> None:
        self._restrictions = Restrictions(max_num_seqs, eos_token_ids)
        self._penalties = Penalties(max_num_seqs)
        self._temperature = np.zeros(max_num_seqs)
        self._top_p = np.ones(max_num_seqs)
        self._min_p = np.zeros(max_num_seqs)
        self._top_k = np.zeros(max_num_seqs, np.int64)
        self._seed = np.zeros(max_num_seqs, np.uint64)
        self._bias_ids = Ragged(max_num_seqs, np.int32)
        self._bias_values = Ragged(max_num_seqs, np.float32)

    def put(
        self,
        slot: int,
        params: SamplingParams,
        prompt_ids: NDArray[np.int32] = NO_IDS,
        generated_ids: NDArray[np.int32] = NO_IDS,
    ) -> None:
        """The slot's request wants its tokens chosen so, and has these ids."""
        self._restrictions.put(slot, params, generated_ids)
        self._penalties.put(slot, params, prompt_ids, generated_ids)
        self._temperature[slot] = params.temperature
        self._top_p[slot] = params.top_p
        self._min_p[slot] = params.min_p
        self._top_k[slot] = max(params.top_k, 0)
        self._seed[slot] = params.seed & MASK
        self._bias_ids.replace(slot, [token for token, _ in params.logit_bias])
        self._bias_values.replace(slot, [bias for _, bias in params.logit_bias])

    def sample(self, logits_SV: Tensor, slots: Indices, positions: Indices, generated: Indices) -> NDArray[np.int32]:
        """Token ids [S], which the slots have from now on. `logits_SV` is float32 and is changed.

        `positions` are the new tokens' indices in their sequences, `generated` the numbers of tokens generated so far.
        Raises ModelError if a row's logits are not numbers.
        """
        self._restrictions.apply(logits_SV.numpy(), slots, generated)
        self._add_bias(logits_SV, slots)
        self._penalties.apply(logits_SV.numpy(), slots)
        best_S, tokens_S = (part.numpy() for part in logits_SV.max(dim=-1))
        _check_finite(best_S)
        tokens: NDArray[np.int32] = tokens_S.astype(np.int32)
        random = np.flatnonzero(self._temperature[slots] > 0.0)
        if len(random) > 0:
            chosen = logits_SV if len(random) == len(slots) else logits_SV[torch.from_numpy(random)]
            tokens[random] = self._draw(chosen, slots[random], positions[random])
        self._restrictions.append(slots, tokens)
        self._penalties.append(slots, tokens)
        return tokens

    def _add_bias(self, logits_SV: Tensor, slots: Indices) -> None:
        if self._bias_ids.counts[slots].any():
            rows, ids = self._bias_ids.read_all(slots)
            _, values = self._bias_values.read_all(slots)
            places = torch.from_numpy(rows), torch.from_numpy(ids.astype(np.int64))
            logits_SV.index_put_(places, torch.from_numpy(values), accumulate=True)

    def _draw(self, logits_RV: Tensor, slots: Indices, positions: Indices) -> NDArray[np.int64]:
        below_RV = logits_RV.double()
        below_RV -= below_RV.amax(dim=-1, keepdim=True)  # first: divided by a tiny temperature, it could be infinite
        weights_RV = below_RV.div_(_column(self._temperature[slots])).exp_()
        self._filter(logits_RV, weights_RV, slots)
        return _invert(weights_RV, word(self._seed[slots], positions.astype(np.uint64)))

    def _filter(self, logits_RV: Tensor, weights_RV: Tensor, slots: Indices) -> None:
        """Sets the weights of tokens that are out to 0. The highest weight of each row is 1."""
        min_p, top_k, top_p = self._min_p[slots], self._top_k[slots], self._top_p[slots]
        if min_p.any():
            weights_RV.masked_fill_(weights_RV < _column(min_p), 0.0)
        ranked = np.flatnonzero((top_k > 0) | (top_p < 1.0))
        if len(ranked) == 0:
            return
        rows = torch.from_numpy(ranked)
        kept_RV = keep_top(logits_RV[rows], weights_RV[rows], top_k[ranked], top_p[ranked])
        weights_RV.index_copy_(0, rows, kept_RV)


def keep_top(logits_RV: Tensor, weights_RV: Tensor, top_k: Indices, top_p: NDArray[np.float64]) -> Tensor:
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
    logits_RV: Tensor, weights_RV: Tensor, top_k: Indices, top_p: NDArray[np.float64], count: int
) -> tuple[Tensor, NDArray[np.bool_]]:
    """The lowest logit [R] that stays, from the `count` highest; and whether these were enough to know it."""
    vocab_size = logits_RV.shape[1]
    best_RC, ids_RC = logits_RV.topk(count)
    k_floor_R1 = best_RC.gather(1, torch.from_numpy(np.where(top_k > 0, np.minimum(top_k, vocab_size), 1) - 1)[:, None])
    k_floor_R1[torch.from_numpy(top_k == 0)] = float("-inf")
    total_R1 = row_sums(weights_RV.masked_fill(logits_RV < k_floor_R1, 0.0))
    weights_RC = weights_RV.gather(1, ids_RC).masked_fill_(best_RC < k_floor_R1, 0.0)
    before_RC = weights_RC.cumsum(dim=-1) - weights_RC
    needed_R1 = total_R1 * _column(top_p)
    last_R1 = (before_RC < needed_R1).sum(dim=-1, keepdim=True).clamp_(min=1) - 1
    p_floor_R1 = best_RC.gather(1, last_R1)
    off = torch.from_numpy(top_p >= 1.0)
    p_floor_R1[off] = float("-inf")
    reached_R = (before_RC + weights_RC)[:, -1] >= needed_R1[:, 0]
    return torch.maximum(k_floor_R1, p_floor_R1)[:, 0], (reached_R | off).numpy() | (count == vocab_size)


def row_sums(weights_RV: Tensor) -> Tensor:
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


def _column(numbers: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(numbers)[:, None]


def _check_finite(best_S: NDArray[np.float32]) -> None:
    rows = np.flatnonzero(~np.isfinite(best_S)).tolist()
    if rows:
        raise ModelError(f"the model's logits are not finite in sampled rows {rows}; --dtype float32 may help")
