"""The null model: the next token is a hash of all ids before it. Needs neither weights nor torch nor numpy.

The hash of a sequence is the CRC-32 of its ids as little-endian int32, kept per slot and extended by each token, so
that a row costs the same whatever its length, and the ids do not depend on chunks, batches or preemption. Token
number `position` is `word(word(seed, crc), position)` modulo the vocabulary, or modulo the number of
`allowed_token_ids`, where seed is 0 for a greedy request. Its "logits" are 10 for that token and 0 for all others,
plus `logit_bias`, less penalties; the highest wins, and of equals the lowest id. Tokens that bad words or `min_tokens`
keep out are never chosen: the hash is mixed again while it names one. `top_k`, `top_p` and `min_p` keep at least the
best token, which is the only one this model knows. Log-probabilities are those of logits of 10 for the hash modulo the
vocabulary and 0 for all others.
"""

import time
from collections.abc import Callable

from actorlm.checkpoint.description import ModelDescription
from actorlm.config import BLOCK_SIZE
from actorlm.errors import ProtocolError
from actorlm.execution.null_sequence import NullSequence
from actorlm.logprobs import Scores, pack
from actorlm.messages.executor import StepDone
from actorlm.messages.worker import AddRequest, RunStep
from actorlm.wire import int32, read_int32


class NullRunner:
    """Runs steps of the null model; same interface and same checks as `execution.runner.Runner`.

    Each step sleeps `step_ms` milliseconds, which stands for the time of a device. Ranks need not meet: each computes
    everything, and the one that `answers` gives the tokens.
    """

    def __init__(
        self,
        model: ModelDescription,
        *,
        num_blocks: int,
        max_num_seqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        step_ms: float = 0.0,
        answers: bool = True,
    ) -> None:
        self.bytes_read = 0
        self._model = model
        self._num_blocks = num_blocks
        self._max_model_len = max_model_len
        self._max_num_batched_tokens = max_num_batched_tokens
        self._step_s = step_ms / 1000
        self._answers = answers
        self._slots: list[NullSequence | None] = [None] * max_num_seqs
        self._scored: set[int] = set()

    def load(self, progress: Callable[[int, int], None]) -> None:
        """There are no weights: `progress(0, 0)`."""
        progress(0, 0)

    def warm_up(self) -> None:
        """Nothing is cold here."""

    def execute(self, step: RunStep) -> StepDone | None:
        """Computes one step. Raises ProtocolError for a plan that contradicts the slots."""
        began = time.perf_counter_ns()
        self._update(step)
        rows = self._compute_rows(step)
        scores = self._score_prompts(rows) if self._scored else {}
        tokens = int32(self._sample(slot, scores) for slot in self._sampled(step, rows))
        logprobs = pack([scores.get(slot) for slot, _, _ in rows]) if scores else None
        if self._step_s:
            time.sleep(self._step_s)
        return StepDone(step.step, tokens, time.perf_counter_ns() - began, logprobs) if self._answers else None

    def _update(self, step: RunStep) -> None:
        for slot in read_int32(step.released):
            self._at(slot)
            self._slots[slot] = None
            self._scored.discard(slot)
        for request in step.added:
            self._add(request)
        for slot, block in _rows(step.block_slots, step.block_ids):
            if not 0 <= block < self._num_blocks:
                raise ProtocolError(f"slot {slot} gets block {block} of {self._num_blocks}")
            self._at(slot).blocks += 1

    def _add(self, request: AddRequest) -> None:
        slot, ids = request.slot, read_int32(request.token_ids)
        if not 0 <= slot < len(self._slots) or self._slots[slot] is not None:
            raise ProtocolError(f"a request enters slot {slot}, which is taken or is not one of {len(self._slots)}")
        if not 1 <= request.prompt_length <= len(ids) <= self._max_model_len:
            raise ProtocolError(f"slot {slot} gets {len(ids)} ids with a prompt of {request.prompt_length}")
        if min(ids) < 0 or max(ids) >= self._model.vocab_size:
            raise ProtocolError(f"slot {slot} gets an id that is not one of {self._model.vocab_size}")
        sequence = self._slots[slot] = NullSequence(request, self._model.eos_token_ids, self._model.vocab_size)
        if sequence.is_scored:
            self._scored.add(slot)

    def _at(self, slot: int) -> NullSequence:
        sequence = self._slots[slot] if 0 <= slot < len(self._slots) else None
        if sequence is None:
            raise ProtocolError(f"the plan names slot {slot}, which is empty or is not one of {len(self._slots)}")
        return sequence

    def _compute_rows(self, step: RunStep) -> list[tuple[int, int, int]]:
        """Checks the rows and moves their slots on; gives (slot, start, end) of each."""
        rows = _rows(step.slots, step.starts, step.counts)
        total = sum(count for _, _, count in rows)
        if total > self._max_num_batched_tokens:
            raise ProtocolError(f"step {step.step} has {total} tokens; at most {self._max_num_batched_tokens}")
        if len({slot for slot, _, _ in rows}) != len(rows):
            raise ProtocolError(f"step {step.step} has two rows of one slot")
        for slot, start, count in rows:
            self._compute(slot, start, count)
        return [(slot, start, start + count) for slot, start, count in rows]

    def _compute(self, slot: int, start: int, count: int) -> None:
        sequence, end = self._at(slot), start + count
        if count < 1 or start < 0 or sequence.computed not in (-1, start):
            raise ProtocolError(f"slot {slot} computes [{start}, {end}) after {sequence.computed} tokens")
        if end > min(sequence.length, sequence.blocks * BLOCK_SIZE):
            raise ProtocolError(f"slot {slot} computes to {end} of {sequence.length} ids in {sequence.blocks} blocks")
        sequence.computed = end

    def _sampled(self, step: RunStep, rows: list[tuple[int, int, int]]) -> list[int]:
        indices = list(read_int32(step.sampled))
        if indices != sorted(set(indices)) or (indices and not 0 <= indices[0] <= indices[-1] < len(rows)):
            raise ProtocolError(f"step {step.step} samples rows {indices} of {len(rows)}")
        for slot, _, end in (rows[i] for i in indices):
            if end != self._at(slot).length or end >= self._max_model_len:
                raise ProtocolError(f"slot {slot} samples at {end} of {self._at(slot).length} ids")
        return [rows[i][0] for i in indices]

    def _score_prompts(self, rows: list[tuple[int, int, int]]) -> dict[int, Scores]:
        """What each slot gained that asks for log-probabilities; so far, those of its prompt."""
        return {
            slot: self._at(slot).score_prompt(start, end) or Scores()
            for slot, start, end in rows
            if slot in self._scored
        }

    def _sample(self, slot: int, scores: dict[int, Scores]) -> int:
        sequence = self._at(slot)
        token = sequence.next_token()
        if slot in scores:
            sequence.score_next(scores[slot].output, token)
        sequence.append(token)
        return token


def _rows(*columns: bytes) -> list[tuple[int, ...]]:
    if len(set(map(len, columns))) > 1 or len(columns[0]) % 4:
        raise ProtocolError(f"columns that belong together have {[len(column) for column in columns]} bytes")
    return list(zip(*map(read_int32, columns), strict=True))
