"""The null model: the next token is a hash of all ids before it. Needs neither weights nor torch nor numpy.

The hash of a sequence is the CRC-32 of its ids as little-endian int32, kept per slot and extended by each token, so
that a row costs the same whatever its length, and the ids do not depend on chunks, batches or preemption. Token
number `position` is `word(word(seed, crc), position)` modulo the vocabulary, or modulo the number of
`allowed_token_ids`, where seed is 0 for a greedy request. Its "logits" are 10 for that token and 0 for all others,
plus `logit_bias`, less penalties; the highest wins, and of equals the lowest id. Tokens that bad words or `min_tokens`
keep out are never chosen: the hash is mixed again while it names one. `top_k`, `top_p` and `min_p` keep at least the
best token, which is the only one this model knows.
"""

import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence

from actorlm.checkpoint.description import ModelDescription
from actorlm.config import BLOCK_SIZE
from actorlm.errors import ProtocolError
from actorlm.execution.bad_words import BadWords
from actorlm.execution.randomness import MASK, mix, word
from actorlm.messages.executor import StepDone
from actorlm.messages.worker import AddRequest, RunStep
from actorlm.sampling import SamplingParams
from actorlm.wire import int32, read_int32

HASHED_LOGIT = 10.0


class _Sequence:
    """What a slot holds: no ids, only what the next token depends on."""

    __slots__ = (
        "allowed", "bad_words", "bias", "blocks", "computed", "crc", "ends", "length", "min_length", "sampling", "seed",
        "seen",
    )  # fmt: skip

    def __init__(self, request: AddRequest, eos_token_ids: tuple[int, ...]) -> None:
        sampling = self.sampling = request.sampling
        ids = read_int32(request.token_ids)
        generated = ids[request.prompt_length :]
        self.crc = zlib.crc32(request.token_ids)
        self.length = len(ids)
        self.seed = 0 if sampling.greedy else sampling.seed & MASK
        self.min_length = request.prompt_length + sampling.min_tokens
        self.ends = frozenset((*eos_token_ids, *sampling.stop_token_ids)) if sampling.min_tokens else frozenset()
        self.allowed = None if sampling.allowed_token_ids is None else sorted(set(sampling.allowed_token_ids))
        self.bad_words = BadWords(sampling.bad_words, generated) if sampling.bad_words else None
        self.bias = _summed(sampling)
        self.seen: Counter[int] = Counter()
        """How often each token was generated, if there are penalties; 0 for one that stands in the prompt alone."""
        if sampling.penalized:
            self.seen.update(dict.fromkeys(ids, 0))
            self.seen.update(generated)
        self.blocks = 0
        self.computed = -1

    def next_token(self, vocab_size: int) -> int:
        """The token at the sequence's end."""
        out = self._out()
        candidates = range(vocab_size) if self.allowed is None else self.allowed
        bits = word(word(self.seed, self.crc), self.length)
        while (token := candidates[bits % len(candidates)]) in out:
            bits = mix(bits)
        return self._best(token, out, candidates) if self.bias or self.seen else token

    def _out(self) -> frozenset[int]:
        ends = self.ends if self.length < self.min_length else frozenset()
        return ends if self.bad_words is None else ends.union(self.bad_words.banned())

    def _best(self, hashed: int, out: frozenset[int], candidates: Sequence[int]) -> int:
        known = {hashed, *self.bias, *self.seen}
        logits = {token: self._logit(token, hashed) for token in known if token in candidates and token not in out}
        plain = next((token for token in candidates if token not in known and token not in out), None)
        if plain is not None:
            logits[plain] = 0.0
        return min(logits, key=lambda token: (-logits[token], token))

    def _logit(self, token: int, hashed: int) -> float:
        logit = self.bias.get(token, 0.0) + (HASHED_LOGIT if token == hashed else 0.0)
        if token not in self.seen:
            return logit
        sampling, generated = self.sampling, self.seen[token]
        penalty = sampling.repetition_penalty
        logit = logit / penalty if logit > 0 else logit * penalty
        return logit - sampling.frequency_penalty * generated - sampling.presence_penalty * (generated > 0)

    def append(self, token: int) -> None:
        """The sequence grows by a token that was sampled."""
        self.crc = zlib.crc32(token.to_bytes(4, "little"), self.crc)
        self.length += 1
        if self.bad_words is not None:
            self.bad_words.append(token)
        if self.sampling.penalized:
            self.seen[token] += 1


class NullRunner:
    """Runs steps of the null model; same interface and same checks as `execution.runner.Runner`.

    Each step sleeps `step_ms` milliseconds, which stands for the time of a device.
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
    ) -> None:
        self._model = model
        self._num_blocks = num_blocks
        self._max_model_len = max_model_len
        self._max_num_batched_tokens = max_num_batched_tokens
        self._step_s = step_ms / 1000
        self._slots: list[_Sequence | None] = [None] * max_num_seqs

    def load(self, progress: Callable[[int, int], None]) -> None:
        """There are no weights: `progress(0, 0)`."""
        progress(0, 0)

    def warm_up(self) -> None:
        """Nothing is cold here."""

    def execute(self, step: RunStep) -> StepDone:
        """Computes one step. Raises ProtocolError for a plan that contradicts the slots."""
        began = time.perf_counter_ns()
        self._update(step)
        rows = self._compute_rows(step)
        tokens = int32(self._sample(slot) for slot in self._sampled(step, rows))
        if self._step_s:
            time.sleep(self._step_s)
        return StepDone(step=step.step, tokens=tokens, busy_ns=time.perf_counter_ns() - began)

    def _update(self, step: RunStep) -> None:
        for slot in read_int32(step.released):
            self._at(slot)
            self._slots[slot] = None
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
        self._slots[slot] = _Sequence(request, self._model.eos_token_ids)

    def _at(self, slot: int) -> _Sequence:
        sequence = self._slots[slot] if 0 <= slot < len(self._slots) else None
        if sequence is None:
            raise ProtocolError(f"the plan names slot {slot}, which is empty or is not one of {len(self._slots)}")
        return sequence

    def _compute_rows(self, step: RunStep) -> list[tuple[int, int]]:
        """Checks the rows and moves their slots on; gives (slot, end) of each."""
        rows = _rows(step.slots, step.starts, step.counts)
        total = sum(count for _, _, count in rows)
        if total > self._max_num_batched_tokens:
            raise ProtocolError(f"step {step.step} has {total} tokens; at most {self._max_num_batched_tokens}")
        if len({slot for slot, _, _ in rows}) != len(rows):
            raise ProtocolError(f"step {step.step} has two rows of one slot")
        for slot, start, count in rows:
            self._compute(slot, start, count)
        return [(slot, start + count) for slot, start, count in rows]

    def _compute(self, slot: int, start: int, count: int) -> None:
        sequence, end = self._at(slot), start + count
        if count < 1 or start < 0 or sequence.computed not in (-1, start):
            raise ProtocolError(f"slot {slot} computes [{start}, {end}) after {sequence.computed} tokens")
        if end > min(sequence.length, sequence.blocks * BLOCK_SIZE):
            raise ProtocolError(f"slot {slot} computes to {end} of {sequence.length} ids in {sequence.blocks} blocks")
        sequence.computed = end

    def _sampled(self, step: RunStep, rows: list[tuple[int, int]]) -> list[int]:
        indices = list(read_int32(step.sampled))
        if indices != sorted(set(indices)) or (indices and not 0 <= indices[0] <= indices[-1] < len(rows)):
            raise ProtocolError(f"step {step.step} samples rows {indices} of {len(rows)}")
        for slot, end in (rows[i] for i in indices):
            if end != self._at(slot).length or end >= self._max_model_len:
                raise ProtocolError(f"slot {slot} samples at {end} of {self._at(slot).length} ids")
        return [rows[i][0] for i in indices]

    def _sample(self, slot: int) -> int:
        sequence = self._at(slot)
        token = sequence.next_token(self._model.vocab_size)
        sequence.append(token)
        return token


def _rows(*columns: bytes) -> list[tuple[int, ...]]:
    if len(set(map(len, columns))) > 1 or len(columns[0]) % 4:
        raise ProtocolError(f"columns that belong together have {[len(column) for column in columns]} bytes")
    return list(zip(*map(read_int32, columns), strict=True))


def _summed(sampling: SamplingParams) -> dict[int, float]:
    bias: dict[int, float] = {}
    for token, value in sampling.logit_bias:
        bias[token] = bias.get(token, 0.0) + value
    return bias
