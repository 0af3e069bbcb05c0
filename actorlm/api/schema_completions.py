"""The JSON shapes of `/v1/completions`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from actorlm.api.ports import FinishReason
from actorlm.api.schema import GenerationRequest, NotNegative, TopLogprobs, Usage

PromptList = Annotated[list[str | int | list[int]], Meta(min_length=1)]


class CompletionRequest(GenerationRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of a request; `fields.py` tells what each field does.

    `prompt` is a text, a list of texts, a list of token ids, or a list of lists of token ids. `max_tokens` may be 0
    with `echo`, which returns the prompt's text.
    """

    prompt: str | PromptList
    max_tokens: NotNegative | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=1)] | None = None
    suffix: Annotated[str, Meta(max_length=0)] | None = None
    logprobs: TopLogprobs | None = None


class CompletionLogprobs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Four lists with an entry for each token, also for those that are left out of the text.

    `top_logprobs` are the most probable tokens and the one that came. Nothing is known of a prompt's first token.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One choice; of a chunk, `finish_reason` is null in all but the choice's last.

    `token_ids`, if asked for, are those of generated tokens, new in this chunk; `prompt_token_ids` come in the choice's
    first.
    """

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer, or one event of a streamed answer; the event with `usage` has no choices and comes last.

    A chunk before it has the usage so far, if that is asked for.
    """

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
