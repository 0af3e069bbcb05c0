"""JSON shapes that several routes share: what both generating requests take, usage, errors, models, states.

Requests forbid unknown fields, and every optional field may be null. OpenAPI is generated from these structs.
What each request field does is told in `fields.py`.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from actorlm.messages.engine import MAX_PRIORITY
from actorlm.sampling import (
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_LOGPROBS,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_SEED,
    MAX_STOP_TOKEN_IDS,
    MIN_REPETITION_PENALTY,
    MIN_SEED,
)

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024

Refused = Annotated[None, Meta(description="Not supported: absent or null")]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopStrings = Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)]
TokenIds = Annotated[list[int], Meta(max_length=MAX_STOP_TOKEN_IDS)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
LogitBias = Annotated[dict[str, Bias], Meta(max_length=MAX_LOGIT_BIAS)]
AtLeastOne = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Penalty = Annotated[float, Meta(ge=-MAX_PENALTY, le=MAX_PENALTY)]
RepetitionPenalty = Annotated[float, Meta(ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)]
BadWords = Annotated[list[StopString], Meta(max_length=MAX_BAD_WORDS // 2)]
"""Each word may be two token sequences."""
LogprobTokenIds = Annotated[list[int], Meta(max_length=MAX_LOGPROB_TOKEN_IDS)]
AllowedTokenIds = Annotated[list[int], Meta(min_length=1)]
TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
TopK = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
TopP = Annotated[float, Meta(gt=0, le=1)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Priority = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
CacheSalt = Annotated[str, Meta(min_length=1, max_length=1024)]
Truncation = Annotated[int, Meta(ge=-1)]
Seed = Annotated[int, Meta(ge=MIN_SEED, le=MAX_SEED)]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`include_obfuscation` is accepted without effect: nothing is ever padded."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class Choosing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How tokens are chosen and what ends a choice: the fields that every way in has in common. None is the default."""

    n: AtLeastOne | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    seed: Seed | None = None
    min_tokens: NotNegative | None = None
    stop: StopString | StopStrings | None = None
    stop_token_ids: TokenIds | None = None
    logit_bias: LogitBias | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    bad_words: BadWords | None = None
    allowed_token_ids: AllowedTokenIds | None = None
    logprob_token_ids: LogprobTokenIds | None = None


class GenerationRequest(Choosing, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields that chat and text completions have in common."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    truncate_prompt_tokens: Truncation | None = None
    add_special_tokens: bool | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None
    user: str | None = None


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """How many prompt tokens came from the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a whole request. A prompt counts once, however many choices are made from it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ErrorDescription(msgspec.Struct, frozen=True):
    """What went wrong; `param` names the field of the request that is at fault, where one is."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(msgspec.Struct, frozen=True):
    """The body of every error."""

    error: ErrorDescription


class Model(msgspec.Struct, frozen=True):
    """A model that is served. `max_model_len` is the most tokens of prompt and output together."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["actorlm"]
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True):
    """All models that are served: one."""

    object: Literal["list"]
    data: list[Model]


class Status(msgspec.Struct, frozen=True):
    """What the service can do now."""

    status: Literal["starting", "ready", "degraded", "unavailable", "leaving", "draining"]


class Version(msgspec.Struct, frozen=True):
    """The version of actorlm."""

    version: str
