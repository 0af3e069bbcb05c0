"""Log-probabilities of the tokens that a step chooses, and of the prompt tokens that it computes, where asked for.

They come from the model's logits as they are, before the sampler changes them. Each row is summed by itself, so that
its values do not depend on the batch, and in numpy: one row is too short for torch's threads.

Legend: N positions of one request, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from actorlm.errors import ModelError
from actorlm.execution.batch import Batch
from actorlm.execution.ragged import Indices, Ragged
from actorlm.logprobs import Entries, Logprobs, Scores, pack
from actorlm.sampling import SamplingParams

OFF = -1
Logits = NDArray[np.float32]


class PromptPart(NamedTuple):
    """What one row computes of a prompt that is scored."""

    row: int
    start: int
    """Position of the first token that is scored, one after the first that is computed."""
    targets: NDArray[np.int32]
    """[N] the prompt's tokens from there on."""
    tokens: Indices
    """[N] index among the step's tokens of those before them, which predict them."""


class Scoring:
    """What all slots want to know."""

    def __init__(self, max_num_seqs: int) -> None:
        self._output: Indices = np.full(max_num_seqs, OFF, np.int64)
        self._prompt: Indices = np.full(max_num_seqs, OFF, np.int64)
        self._prompt_lengths: Indices = np.zeros(max_num_seqs, np.int64)
        self._token_ids: list[Sequence[int]] = [()] * max_num_seqs

    def put(self, slot: int, params: SamplingParams, prompt_length: int, num_generated: int) -> None:
        """The slot's request asks for so much. The prompt of one that has generated tokens was scored before."""
        wanted = params.logprobs or 0
        self._output[slot] = wanted if params.scores_output else OFF
        self._prompt[slot] = OFF if params.prompt_logprobs is None or num_generated else params.prompt_logprobs
        self._prompt_lengths[slot] = prompt_length
        self._token_ids[slot] = params.logprob_token_ids

    def scores_output(self, slots: Indices) -> NDArray[np.bool_]:
        """Which of these slots want their next tokens scored."""
        scored: NDArray[np.bool_] = self._output[slots] != OFF
        return scored

    def prompt_parts(self, batch: Batch, tokens: Ragged[np.int32]) -> list[PromptPart]:
        """What the step's rows compute of prompts that are scored. `tokens` are the slots'."""
        scored = np.flatnonzero(self._prompt[batch.slots] != OFF)
        if len(scored) == 0:
            return []
        firsts = np.cumsum(batch.counts) - batch.counts
        last = np.minimum(batch.starts + batch.counts, self._prompt_lengths[batch.slots] - 1)
        return [
            PromptPart(
                row=row,
                start=int(batch.starts[row]) + 1,
                targets=tokens.values[batch.slots[row], batch.starts[row] + 1 : last[row] + 1],
                tokens=firsts[row] + np.arange(last[row] - batch.starts[row]),
            )
            for row in scored.tolist()
            if last[row] > batch.starts[row]
        ]

    def raw(self, logits_SV: Tensor, slots: Indices) -> dict[int, Logits]:
        """A copy of the logits [V] of each sampled row (by its index among those) whose token is to be scored.

        `slots` are the rows'.
        """
        wanted = np.flatnonzero(self.scores_output(slots))
        return dict(zip(wanted.tolist(), logits_SV.numpy()[wanted], strict=True))

    def score(
        self,
        batch: Batch,
        raw: dict[int, Logits],
        sampled: NDArray[np.int32],
        parts: list[PromptPart],
        logits_NV: Tensor,
    ) -> Logprobs | None:
        """The scores of all rows. `logits_NV` are those of all parts, one after another."""
        if not raw and not parts:
            return None
        rows: list[Scores | None] = [None] * len(batch.slots)
        begin = 0
        for part in parts:
            entries, count = Entries(), int(self._prompt[batch.slots[part.row]])
            for target, logits_V in zip(part.targets.tolist(), logits_NV.numpy()[begin:], strict=False):
                _append(entries, logits_V, target, count, ())
            begin += len(part.targets)
            rows[part.row] = Scores(part.start, entries)
        for index, logits_V in raw.items():
            slot, row = batch.sampled_slots[index], int(batch.sampled_rows[index])
            scores = rows[row] = rows[row] or Scores()
            _append(scores.output, logits_V, int(sampled[index]), int(self._output[slot]), self._token_ids[slot])
        return pack(rows)


def _append(entries: Entries, logits_V: Logits, token: int, count: int, token_ids: Sequence[int]) -> None:
    """Appends what is known of `token`: the `count` best and `token_ids` beside it."""
    highest = logits_V.max()
    normalizer = float(highest) + math.log(np.exp(logits_V - highest).sum(dtype=np.float64))
    if not math.isfinite(normalizer):
        raise ModelError("the model's logits are not finite; --dtype float32 may help")
    ids = [token, *_best(logits_V, count), *token_ids]
    values = logits_V[ids].astype(np.float64) - normalizer
    entries.append(int(np.count_nonzero(logits_V >= logits_V[token])), ids, values.tolist())


def _best(logits_V: Logits, count: int) -> list[int]:
    """The highest of all, best first, and of equals the lowest id first."""
    ids = np.arange(len(logits_V))
    if count < len(ids):
        ids = np.argpartition(logits_V, -count)[-count:] if count else ids[:0]
    return [int(i) for i in ids[np.lexsort((ids, -logits_V[ids]))][:count]]
