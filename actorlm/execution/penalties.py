"""Penalties for tokens that a sequence has already, as vLLM defines them.

Of a token that stands in the prompt or the output, a positive logit is divided by `repetition_penalty` and any other is
multiplied by it. Then `frequency_penalty` is subtracted once for each time that the token stands in the output, and
`presence_penalty` once if it stands there at all.

Owns, for each slot that is penalised, its distinct tokens and how often each was generated; what a step costs depends
on their number alone. They are counted anew when a request enters a slot, so preemption and resume change nothing.
"""

import numpy as np
from numpy.typing import NDArray

from actorlm.execution.ragged import Indices, Ragged
from actorlm.sampling import SamplingParams


class Penalties:
    """The penalties of all slots."""

    def __init__(self, max_num_seqs: int) -> None:
        self._penalized: NDArray[np.bool_] = np.zeros(max_num_seqs, np.bool_)
        self._repetition = np.ones(max_num_seqs, np.float32)
        self._presence = np.zeros(max_num_seqs, np.float32)
        self._frequency = np.zeros(max_num_seqs, np.float32)
        self._ids = Ragged(max_num_seqs, np.int32)
        self._generated = Ragged(max_num_seqs, np.float32)

    def put(
        self, slot: int, params: SamplingParams, prompt_ids: NDArray[np.int32], generated_ids: NDArray[np.int32]
    ) -> None:
        """The slot's request is penalised so, and has these ids."""
        self._penalized[slot] = params.penalized
        self._repetition[slot] = params.repetition_penalty
        self._presence[slot] = params.presence_penalty
        self._frequency[slot] = params.frequency_penalty
        if not params.penalized:
            prompt_ids = generated_ids = prompt_ids[:0]
        ids = np.unique(np.concatenate((prompt_ids, generated_ids)))
        generated = np.zeros(len(ids), np.float32)
        np.add.at(generated, np.searchsorted(ids, generated_ids), 1)
        self._ids.replace(slot, ids)
        self._generated.replace(slot, generated)

    def apply(self, logits_SV: NDArray[np.float32], slots: Indices) -> None:
        """Changes the logits of the rows whose slots are penalised."""
        if not self._penalized[slots].any():
            return
        rows, ids = self._ids.read_all(slots)
        _, generated = self._generated.read_all(slots)
        owners, logits = slots[rows], logits_SV[rows, ids]
        repetition = self._repetition[owners]
        logits = np.where(logits > 0, logits / repetition, logits * repetition)
        logits -= self._frequency[owners] * generated
        logits -= self._presence[owners] * (generated > 0)
        logits_SV[rows, ids] = logits

    def append(self, slots: Indices, tokens: NDArray[np.int32]) -> None:
        """These slots, each named once, have generated these tokens."""
        chosen = self._penalized[slots]
        if not chosen.any():
            return
        slots, tokens = slots[chosen], tokens[chosen]
        width = int(self._ids.counts[slots].max())
        same = self._ids.values[slots, :width] == tokens[:, None]
        same &= np.arange(width) < self._ids.counts[slots][:, None]
        known = same.any(axis=1)
        self._generated.values[slots[known], same.argmax(axis=1)[known]] += 1
        self._ids.append(slots[~known], tokens[~known])
        self._generated.append(slots[~known], np.ones(int((~known).sum()), np.float32))
