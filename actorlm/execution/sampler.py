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

Steps 2 to 7 are `kernels.choose_tokens`. A row's token depends on its own logits, parameters and position alone.
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
from actorlm.kernels.choose_tokens import Draws, choose_tokens
from actorlm.kernels.native import Native
from actorlm.sampling import SamplingParams

NO_IDS: NDArray[np.int32] = np.empty(0, np.int32)


class Sampler:
    """The parameters of all slots, in columns, and the choice."""

    def __init__(self, max_num_seqs: int, eos_token_ids: Sequence[int], native: Native | None = None) -> None:
        self._native = native
        self._restrictions = Restrictions(max_num_seqs, eos_token_ids)
        self._penalties = Penalties(max_num_seqs)
        self._temperature = np.zeros(max_num_seqs)
        self._top_p = np.ones(max_num_seqs)
        self._min_p = np.zeros(max_num_seqs)
        self._top_k = np.zeros(max_num_seqs, np.int64)
        self._seed = np.zeros(max_num_seqs, np.uint64)
        self._takes_highest: NDArray[np.bool_] = np.zeros(max_num_seqs, np.bool_)
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
        changed = params.penalized or params.restricted or bool(params.logit_bias)
        self._takes_highest[slot] = params.greedy and not changed
        self._bias_ids.replace(slot, [token for token, _ in params.logit_bias])
        self._bias_values.replace(slot, [bias for _, bias in params.logit_bias])

    def takes_highest(self, slots: Indices) -> NDArray[np.bool_]:
        """Which of these slots take the highest logit as the model gives it."""
        return self._takes_highest[slots]

    def sample(self, logits_SV: Tensor, slots: Indices, positions: Indices, generated: Indices) -> NDArray[np.int32]:
        """Token ids [S], which the slots have from now on. `logits_SV` is float32 and is changed.

        `positions` are the new tokens' indices in their sequences, `generated` the numbers of tokens generated so far.
        Raises ModelError if a row's logits are not numbers.
        """
        self._restrictions.apply(logits_SV.numpy(), slots, generated)
        self._add_bias(logits_SV, slots)
        self._penalties.apply(logits_SV.numpy(), slots)
        draws = Draws(
            temperature=self._temperature[slots],
            min_p=self._min_p[slots],
            top_p=self._top_p[slots],
            top_k=self._top_k[slots],
            words=word(self._seed[slots], positions.astype(np.uint64)),
        )
        tokens, best = choose_tokens(logits_SV, draws, self._native)
        check_finite(best)
        self._restrictions.append(slots, tokens)
        self._penalties.append(slots, tokens)
        return tokens

    def _add_bias(self, logits_SV: Tensor, slots: Indices) -> None:
        if self._bias_ids.counts[slots].any():
            rows, ids = self._bias_ids.read_all(slots)
            _, values = self._bias_values.read_all(slots)
            places = torch.from_numpy(rows), torch.from_numpy(ids.astype(np.int64))
            logits_SV.index_put_(places, torch.from_numpy(values), accumulate=True)


def check_finite(best_S: NDArray[np.float32]) -> None:
    """Raises ModelError unless the highest logit [S] of every row is a number."""
    rows = np.flatnonzero(~np.isfinite(best_S)).tolist()
    if rows:
        raise ModelError(f"the model's logits are not finite in sampled rows {rows}; --dtype float32 may help")
