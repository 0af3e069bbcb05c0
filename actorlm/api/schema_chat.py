"""The JSON shapes of `/v1/chat/completions`."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from actorlm.api.ports import FinishReason
from actorlm.api.schema import AtLeastOne, GenerationRequest, Refused, TopLogprobs, Usage

MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_TOOLS = 128
MAX_DOCUMENTS = 1024


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """A part of a message's content."""


class TextPart(_Part, frozen=True, tag="text"):
    """Text. `prompt_cache_breakpoint` is accepted without effect."""

    text: str
    prompt_cache_breakpoint: Any = None


class RefusalPart(_Part, frozen=True, tag="refusal"):
    """What an assistant said instead of an answer."""

    refusal: str


TextParts = Annotated[list[TextPart], Meta(max_length=MAX_PARTS)]
AssistantParts = Annotated[list[TextPart | RefusalPart], Meta(max_length=MAX_PARTS)]


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The function that an assistant called, with arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """A call that an assistant made in an earlier turn."""

    id: str
    function: CalledFunction


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="role"):
    """One turn. Content that is absent or null is empty text."""


class SystemMessage(_Message, frozen=True, tag="system"):
    """What the model is told about its task."""

    content: str | TextParts | None = None
    name: str | None = None


class DeveloperMessage(_Message, frozen=True, tag="developer"):
    """A system message under its newer name; templates see it as `system`."""

    content: str | TextParts | None = None
    name: str | None = None


class UserMessage(_Message, frozen=True, tag="user"):
    """What the user said."""

    content: str | TextParts | None = None
    name: str | None = None


class AssistantMessage(_Message, frozen=True, tag="assistant"):
    """What the model said. `annotations` are accepted without effect, as answers carry them back."""

    content: str | AssistantParts | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=MAX_TOOLS)] | None = None
    annotations: list[Any] | None = None
    audio: Refused = None
    function_call: Refused = None


class ToolMessage(_Message, frozen=True, tag="tool"):
    """What a tool answered."""

    tool_call_id: str
    content: str | TextParts | None = None


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage
Documents = Annotated[list[dict[str, str]], Meta(max_length=MAX_DOCUMENTS)]
Messages = Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]


class Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that the model may call; no `parameters` means no arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """A tool; only functions are tools."""

    function: Function


class FunctionName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names one of the request's functions."""

    name: str


class NamedToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """Demands a call of one function."""

    function: FunctionName


class TextFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Plain text."""


class ChatCompletionRequest(GenerationRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of a request; `fields.py` tells what each field does."""

    messages: Messages
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Documents | None = None
    max_tokens: AtLeastOne | None = None
    max_completion_tokens: AtLeastOne | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    response_format: TextFormat | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    modalities: list[Literal["text"]] | None = None
    function_call: Literal["none", "auto"] | None = None
    service_tier: Literal["auto", "default"] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    audio: Refused = None
    functions: Refused = None
    moderation: Refused = None
    prediction: Refused = None
    web_search_options: Refused = None


class TopLogprob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token that could have come, and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token that came. `top_logprobs` are the most probable ones, best first, then those asked for by id."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry for each generated token, also for those that are left out of the text."""

    content: list[ChatTokenLogprob]
    refusal: None


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer of one choice."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One choice of an answer. `token_ids`, if asked for, are those of all generated tokens."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole answer. `prompt_token_ids` come with the choices' `token_ids`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is new: the role in a choice's first chunk, then text, nothing in its last."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One choice of a chunk; `finish_reason` is null in all but the choice's last. `token_ids` are the new ones."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletionChunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One event of a streamed answer. The one with the final `usage`, if asked for, has no choices and comes last.

    `prompt_token_ids`, if asked for, are in each choice's first.
    """

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
