"""How one request wants its tokens chosen. Engine side only: token ids, no text."""

import contextlib
import math
from collections.abc import Collection, Mapping

from actorlm.errors import BadRequest
from actorlm.wire import Message

MIN_SEED = -(2**63)
MAX_SEED = 2**63 - 1
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 128
MAX_LOGPROBS = 20
MAX_LOGPROB_TOKEN_IDS = 128
MAX_PENALTY = 2.0
MIN_REPETITION_PENALTY = 0.01
MAX_REPETITION_PENALTY = 100.0
"""Beyond these a logit would no longer be a finite number, or nothing but the penalty would be left of it."""


class SamplingParams(Message):
    """Parameters of one choice.

    `temperature` 0 is greedy. `top_k` 0 is off. `seed` is always set by the time a request leaves its
    frontend; randomness is a function of (seed, position) alone. `max_tokens` counts every generated token,
    those of earlier attempts too. `repetition_penalty` looks at prompt and output, `presence_penalty` and
    `frequency_penalty` at the output alone. `bad_words` are sequences that the output never contains;
    `allowed_token_ids`, unless None, are the only ones that it may contain. `logprobs` asks for the log-probability of
    each generated token and of so many most probable ones, `prompt_logprobs` for the same of the prompt's tokens, and
    `logprob_token_ids` for those of these tokens wherever one is generated.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()

    @property
    def greedy(self) -> bool:
        """Whether the best token always wins."""
        return self.temperature == 0.0

    @property
    def scores_output(self) -> bool:
        """Whether log-probabilities of generated tokens are asked for."""
        return self.logprobs is not None or bool(self.logprob_token_ids)

    @property
    def penalized(self) -> bool:
        """Whether tokens that the sequence has already are more or less likely than others."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def restricted(self) -> bool:
        """Whether some tokens may be out."""
        return bool(self.min_tokens or self.bad_words) or self.allowed_token_ids is not None


def check_sampling(params: SamplingParams, vocab_size: int, eos_token_ids: Collection[int]) -> None:
    """Raises BadRequest naming the first field whose value cannot be used.

    `vocab_size` is the number of token ids of the model: ids 0 to vocab_size - 1 exist. `eos_token_ids` are those of
    them that end a generation.
    """
    _within("temperature", params.temperature, 0.0, 2.0)
    _within("presence_penalty", params.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
    _within("frequency_penalty", params.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
    _within("repetition_penalty", params.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
    _within("min_p", params.min_p, 0.0, 1.0)
    if not 0.0 < params.top_p <= 1.0:
        raise BadRequest(f"top_p is {params.top_p}; it must be above 0 and at most 1", param="top_p")
    if params.top_k < -1:
        raise BadRequest(f"top_k is {params.top_k}; it must be positive, or 0 or -1 for all", param="top_k")
    if params.max_tokens < 1:
        raise BadRequest(f"max_tokens is {params.max_tokens}; it must be at least 1", param="max_tokens")
    _check_min_tokens(params)
    if not MIN_SEED <= params.seed <= MAX_SEED:
        raise BadRequest(f"seed is {params.seed}; it must fit 64 bits, {MIN_SEED} to {MAX_SEED}", param="seed")
    _check_ids(params, vocab_size)
    _check_logprobs(params, vocab_size)
    _check_bad_words(params, vocab_size)
    _check_allowed(params, vocab_size)
    _check_choice_is_left(params, vocab_size, eos_token_ids)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise BadRequest(f"{name} is {value}; it must lie between {low:g} and {high:g}", param=name)


def _check_min_tokens(params: SamplingParams) -> None:
    if params.min_tokens < 0:
        raise BadRequest(f"min_tokens is {params.min_tokens}; it must not be negative", param="min_tokens")
    if params.min_tokens > params.max_tokens:
        raise BadRequest(
            f"min_tokens ({params.min_tokens}) is above max_tokens ({params.max_tokens})", param="min_tokens"
        )


def _check_ids(params: SamplingParams, vocab_size: int) -> None:
    if len(params.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise BadRequest(
            f"stop_token_ids has {len(params.stop_token_ids)} ids; at most {MAX_STOP_TOKEN_IDS} are allowed",
            param="stop_token_ids",
        )
    if len(params.logit_bias) > MAX_LOGIT_BIAS:
        raise BadRequest(
            f"logit_bias has {len(params.logit_bias)} entries; at most {MAX_LOGIT_BIAS} are allowed", param="logit_bias"
        )
    for token in params.stop_token_ids:
        check_token("stop_token_ids", token, vocab_size)
    for token, bias in params.logit_bias:
        check_token("logit_bias", token, vocab_size)
        _within("logit_bias", bias, -100.0, 100.0)


def _check_logprobs(params: SamplingParams, vocab_size: int) -> None:
    for name, count in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        if count is not None and not 0 <= count <= MAX_LOGPROBS:
            raise BadRequest(f"{name} is {count}; it must lie between 0 and {MAX_LOGPROBS}", param=name)
    if len(params.logprob_token_ids) > MAX_LOGPROB_TOKEN_IDS:
        raise BadRequest(
            f"logprob_token_ids has {len(params.logprob_token_ids)} ids; at most {MAX_LOGPROB_TOKEN_IDS} are allowed",
            param="logprob_token_ids",
        )
    for token in params.logprob_token_ids:
        check_token("logprob_token_ids", token, vocab_size)


def _check_bad_words(params: SamplingParams, vocab_size: int) -> None:
    if len(params.bad_words) > MAX_BAD_WORDS:
        raise BadRequest(
            f"bad_words make {len(params.bad_words)} token sequences; at most {MAX_BAD_WORDS} are allowed",
            param="bad_words",
        )
    for word in params.bad_words:
        if not 1 <= len(word) <= MAX_BAD_WORD_TOKENS:
            raise BadRequest(
                f"bad_words has a word of {len(word)} tokens; 1 to {MAX_BAD_WORD_TOKENS} are allowed", param="bad_words"
            )
        for token in word:
            check_token("bad_words", token, vocab_size)


def _check_allowed(params: SamplingParams, vocab_size: int) -> None:
    if params.allowed_token_ids is None:
        return
    if not 1 <= len(params.allowed_token_ids) <= vocab_size:
        raise BadRequest(
            f"allowed_token_ids has {len(params.allowed_token_ids)} ids; 1 to {vocab_size} make sense, leave it out to"
            " allow all",
            param="allowed_token_ids",
        )
    for token in params.allowed_token_ids:
        check_token("allowed_token_ids", token, vocab_size)


def _check_choice_is_left(params: SamplingParams, vocab_size: int, eos_token_ids: Collection[int]) -> None:
    """At every position some token must remain, whatever came before."""
    out = {word[-1] for word in params.bad_words}
    if params.min_tokens > 0:
        out |= {*eos_token_ids, *params.stop_token_ids}
    allowed = params.allowed_token_ids
    left = vocab_size - len(out) if allowed is None else len(set(allowed) - out)
    if left <= 0:
        raise BadRequest(
            "no token may be left to choose: bad_words, and the end tokens that min_tokens keeps out, cover all that"
            " is allowed; allow more tokens",
            param="bad_words" if allowed is None else "allowed_token_ids",
        )


def check_token(name: str, token: int, vocab_size: int) -> None:
    """Raises BadRequest if `token` is no id of the vocabulary."""
    if not 0 <= token < vocab_size:
        raise BadRequest(f"{name} has token id {token}; this model's ids are 0 to {vocab_size - 1}", param=name)


def logit_bias_pairs(bias: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    """OpenAI's logit_bias object as (token id, bias) pairs. Raises BadRequest for a key that is no integer."""
    return tuple((_token_id(key), value) for key, value in bias.items())


def _token_id(key: str) -> int:
    with contextlib.suppress(ValueError):
        if str(token := int(key)) == key:  # int() would also take "1_0", "+5" and " 5"
            return token
    raise BadRequest(f"logit_bias has the key {key!r}, which is no token id", param="logit_bias")
