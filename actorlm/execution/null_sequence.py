"""One sequence of the null model, which `null.py` tells about: the choice of its next token, and log-probabilities."""

import math
import zlib
from collections import Counter
from collections.abc import Sequence

from actorlm.execution.bad_words import BadWords
from actorlm.execution.randomness import MASK, mix, word
from actorlm.logprobs import Entries, Scores
from actorlm.messages.worker import AddRequest
from actorlm.sampling import SamplingParams
from actorlm.wire import read_int32

HASHED_LOGIT = 10.0


class NullSequence:
    """What a slot holds: the prompt's ids only if they are to be scored, else only what the next token depends on."""

    __slots__ = (
        "allowed", "bad_words", "bias", "blocks", "computed", "crc", "ends", "length", "min_length", "prompt",
        "sampling", "seed", "seen", "vocab_size",
    )  # fmt: skip

    def __init__(self, request: AddRequest, eos_token_ids: tuple[int, ...], vocab_size: int) -> None:
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
        self.vocab_size = vocab_size
        self.prompt = b""
        if sampling.prompt_logprobs is not None and not generated:
            self.prompt = request.token_ids
        self.blocks = 0
        self.computed = -1

    def next_token(self) -> int:
        """The token at the sequence's end."""
        out = self._out()
        candidates = range(self.vocab_size) if self.allowed is None else self.allowed
        bits = word(word(self.seed, self.crc), self.length)
        while (token := candidates[bits % len(candidates)]) in out:
            bits = mix(bits)
        return self._best(token, out, candidates) if self.bias or self.seen else token

    @property
    def is_scored(self) -> bool:
        """Whether log-probabilities are asked for."""
        return bool(self.prompt) or self.sampling.scores_output

    def score_prompt(self, start: int, end: int) -> Scores | None:
        """What is known of the prompt's tokens that those at [start, end) predict, if it is asked for."""
        last = min(end, len(self.prompt) // 4 - 1)
        if start >= last:
            return None
        entries, count = Entries(), self.sampling.prompt_logprobs or 0
        for position, token in enumerate(read_int32(self.prompt)[start + 1 : last + 1], start + 1):
            bits = word(word(self.seed, zlib.crc32(self.prompt[: 4 * position])), position)
            self._score(entries, bits, token, count, ())
        return Scores(start + 1, entries)

    def score_next(self, entries: Entries, token: int) -> None:
        """What is known of the token that comes at the sequence's end, if it is asked for."""
        if self.sampling.scores_output:
            bits = word(word(self.seed, self.crc), self.length)
            self._score(entries, bits, token, self.sampling.logprobs or 0, self.sampling.logprob_token_ids)

    def _score(self, entries: Entries, bits: int, token: int, count: int, token_ids: Sequence[int]) -> None:
        best = bits % self.vocab_size
        lowest = [other for other in range(min(count + 1, self.vocab_size)) if other != best]
        ids = [token, *[best, *lowest][:count], *token_ids]
        plain = -math.log(math.exp(HASHED_LOGIT) + self.vocab_size - 1)
        values = [plain + HASHED_LOGIT if one == best else plain for one in ids]
        entries.append(1 if token == best else self.vocab_size, ids, values)

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


def _summed(sampling: SamplingParams) -> dict[int, float]:
    bias: dict[int, float] = {}
    for token, value in sampling.logit_bias:
        bias[token] = bias.get(token, 0.0) + value
    return bias
