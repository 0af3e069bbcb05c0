"""From requests to submissions: every field is used here, or refused. Pure but for the seeds that `draw_seed` draws.

The choices of one prompt are a unit: choice 0 has the request's seed, choice i > 0 the first 64 bits of
SHA-256 over (seed, i), so that a prompt gives the same choices alone and in a batch of prompts. Without
a seed, each prompt draws its own.
"""

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import msgspec

from actorlm.api.ports import Backend, Limits, Submission
from actorlm.api.schema import Choosing, GenerationRequest
from actorlm.checkpoint.description import ModelDescription
from actorlm.errors import BadRequest, ContextLengthExceeded, NotFound
from actorlm.sampling import SamplingParams, check_sampling, check_token, logit_bias_pairs
from actorlm.text.bad_words import sequences, spellings


class Wanted(NamedTuple):
    """What a route has read from fields of its own: tokens at most, and most probable tokens in each place if any."""

    max_tokens: int
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@contextmanager
def about(param: str) -> Iterator[None]:
    """Names the field that a BadRequest is about, where it names none itself."""
    try:
        yield
    except BadRequest as error:
        error.param = error.param or param
        raise


DrawSeed = Callable[[], int]
"""Draws a seed, 0 to 2**63 - 1."""

TokenSequences = tuple[tuple[int, ...], ...]


def check_model(asked: str, served: str) -> None:
    """Raises NotFound for a model that is not served here."""
    if asked != served:
        raise NotFound(f"model {asked!r} is not served here; {served!r} is", param="model", code="model_not_found")


def check_choices(request: GenerationRequest, prompts: int, limits: Limits) -> int:
    """How many choices each prompt gets. Raises BadRequest if all prompts together would get too many."""
    n = request.n if request.n is not None else 1
    if n * prompts > limits.max_choices:
        name = "n" if n > 1 else "prompt"
        raise BadRequest(f"{n} choices of {prompts} prompts: at most {limits.max_choices} are allowed", param=name)
    return n


def wants_stream(request: GenerationRequest) -> bool:
    """Whether to stream. Raises BadRequest for options of a stream that is not asked for."""
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options needs stream to be true", param="stream_options")
    return bool(request.stream)


class UsageReports(NamedTuple):
    """Where a stream tells its usage: in a last event of its own, and before in every event."""

    last: bool
    every: bool


def usage_reports(request: GenerationRequest) -> UsageReports:
    """Where usage is wanted. Raises BadRequest for continuous usage in a stream that is to have none."""
    options = request.stream_options
    if options is None:
        return UsageReports(last=False, every=False)
    if options.continuous_usage_stats and not options.include_usage:
        raise BadRequest("continuous_usage_stats needs include_usage to be true", param="stream_options")
    return UsageReports(bool(options.include_usage), bool(options.continuous_usage_stats))


def prompt_tokens_kept(request: GenerationRequest, max_tokens: int, limits: Limits) -> int | None:
    """How many tokens of a prompt are kept, the last ones; None for all. Raises BadRequest for none."""
    asked = request.truncate_prompt_tokens
    if asked == 0:
        raise BadRequest(
            "truncate_prompt_tokens is 0; keep at least 1, or -1 for what fits", param="truncate_prompt_tokens"
        )
    if asked == -1:
        return max(1, limits.context - max_tokens)
    return None if asked is None else min(asked, limits.context)


def stop_strings(request: Choosing) -> tuple[str, ...]:
    """The strings that end a choice."""
    if request.stop is None:
        return ()
    return (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)


def derived_seed(seed: int, choice: int) -> int:
    """The seed of the choice-th choice of a prompt."""
    if choice == 0:
        return seed
    digest = hashlib.sha256(struct.pack("<qq", seed, choice)).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def check_prompt(ids: Sequence[int], param: str, vocab_size: int, limits: Limits) -> int:
    """The tokens of output that a prompt leaves room for. Raises BadRequest, ContextLengthExceeded if none."""
    if not ids:
        raise BadRequest(f"{param} is empty, and this model needs at least one token to begin with", param=param)
    if len(ids) >= limits.context:
        raise ContextLengthExceeded(
            f"the context holds {limits.context} tokens of prompt and output, and {param} has {len(ids)}; shorten it",
            param=param,
        )
    if min(ids) < 0 or max(ids) >= vocab_size:
        for token in ids:
            check_token(param, token, vocab_size)
    return limits.context - len(ids)


async def bad_words(request: GenerationRequest, backend: Backend) -> TokenSequences:
    """The bad words as token sequences. Raises BadRequest for a word that is none."""
    if not request.bad_words:
        return ()
    with about("bad_words"):
        return sequences(await backend.encode(spellings(request.bad_words), add_special_tokens=False))


def sampling(
    request: Choosing, seed: int, model: ModelDescription, wanted: Wanted, banned: TokenSequences
) -> SamplingParams:
    """How the tokens of one choice are chosen. Raises BadRequest naming the field at fault."""
    model_wants = model.sampling_defaults
    params = SamplingParams(
        max_tokens=wanted.max_tokens,
        temperature=_first(request.temperature, model_wants.temperature, 1.0),
        top_p=_first(request.top_p, model_wants.top_p, 1.0),
        top_k=max(_first(request.top_k, model_wants.top_k, 0), 0),
        min_p=_first(request.min_p, model_wants.min_p, 0.0),
        seed=seed,
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        logit_bias=logit_bias_pairs(request.logit_bias or {}),
        repetition_penalty=_first(request.repetition_penalty, model_wants.repetition_penalty, 1.0),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        bad_words=banned,
        allowed_token_ids=None if request.allowed_token_ids is None else tuple(request.allowed_token_ids),
        logprobs=wanted.logprobs,
        prompt_logprobs=wanted.prompt_logprobs,
        logprob_token_ids=tuple(request.logprob_token_ids or ()),
    )
    check_sampling(params, model.vocab_size, model.eos_token_ids)
    return params


Number = TypeVar("Number", int, float)


def _first(asked: Number | None, model_wants: Number | None, otherwise: Number) -> Number:
    if asked is not None:
        return asked
    return otherwise if model_wants is None else model_wants


def submissions(
    request: Choosing,
    prompt_ids: list[int],
    *,
    wanted: Wanted,
    n: int,
    model: ModelDescription,
    banned: TokenSequences,
    draw_seed: DrawSeed,
    priority: int = 0,
    cache_salt: str = "",
) -> list[Submission]:
    """The `n` choices of one prompt; `banned` are the bad words. Raises BadRequest."""
    seed = draw_seed() if request.seed is None else request.seed
    params = sampling(request, seed, model, wanted, banned)
    stop, include_stop = stop_strings(request), bool(request.include_stop_str_in_output)
    skip_special_tokens = request.skip_special_tokens is not False
    return [
        Submission(
            prompt_ids=prompt_ids,
            sampling=_with_seed(params, derived_seed(seed, choice)),
            stop=stop,
            include_stop=include_stop,
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=request.spaces_between_special_tokens is not False,
            priority=priority,
            cache_salt=cache_salt,
        )
        for choice in range(n)
    ]


def _with_seed(params: SamplingParams, seed: int) -> SamplingParams:
    return params if params.seed == seed else msgspec.structs.replace(params, seed=seed)
