"""Which tokens a row may take at all: the logits of all others become -inf.

Out are, as vLLM has it: tokens that are not among `allowed_token_ids`, those that would complete one of `bad_words`,
and until `min_tokens` are generated the eos ids and `stop_token_ids`. That some token is always left is checked before
a request gets here (`sampling.check_sampling`).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from actorlm.execution.bad_words import BadWords
from actorlm.execution.ragged import Indices, Ragged
from actorlm.sampling import SamplingParams

OUT = float("-inf")


class Restrictions:
    """The restrictions of all slots."""

    def __init__(self, max_num_seqs: int, eos_token_ids: Sequence[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._min_tokens = np.zeros(max_num_seqs, np.int64)
        self._end_ids = Ragged(max_num_seqs, np.int32)
        self._allowed: list[Indices | None] = [None] * max_num_seqs
        self._bad_words: list[BadWords | None] = [None] * max_num_seqs
        self._is_restricted: NDArray[np.bool_] = np.zeros(max_num_seqs, np.bool_)
        """Slots with allowed tokens or bad words, which take a loop."""

    def put(self, slot: int, params: SamplingParams, generated_ids: NDArray[np.int32]) -> None:
        """The slot's request is restricted so, and has generated these ids."""
        allowed, words = params.allowed_token_ids, params.bad_words
        self._min_tokens[slot] = params.min_tokens
        self._end_ids.replace(slot, [*self._eos_token_ids, *params.stop_token_ids])
        self._allowed[slot] = None if allowed is None else np.array(allowed, np.int64)
        self._bad_words[slot] = BadWords(words, generated_ids.tolist()) if words else None
        self._is_restricted[slot] = allowed is not None or bool(words)

    def apply(self, logits_SV: NDArray[np.float32], slots: Indices, generated: Indices) -> None:
        """Sets logits [S, V] to -inf. `generated` [S] are the numbers of tokens generated so far."""
        for row in np.flatnonzero(self._is_restricted[slots]).tolist():
            self._restrict(logits_SV[row], int(slots[row]))
        early = np.flatnonzero(generated < self._min_tokens[slots])
        if len(early) > 0:
            rows, ids = self._end_ids.read_all(slots[early])
            logits_SV[early[rows], ids] = OUT

    def append(self, slots: Indices, tokens: NDArray[np.int32]) -> None:
        """These slots have generated these tokens."""
        for row in np.flatnonzero(self._is_restricted[slots]).tolist():
            words = self._bad_words[slots[row]]
            if words is not None:
                words.append(int(tokens[row]))

    def _restrict(self, logits_V: NDArray[np.float32], slot: int) -> None:
        allowed, words = self._allowed[slot], self._bad_words[slot]
        if allowed is not None:
            kept = logits_V[allowed]
            logits_V.fill(OUT)
            logits_V[allowed] = kept
        if words is not None:
            logits_V[words.banned()] = OUT
