"""Chat's own part of lowering: messages as a template reads them, tools and lengths."""

from collections.abc import Sequence
from typing import Any

import msgspec

from actorlm.api.fields import CHAT
from actorlm.api.lower import prompt_tokens_kept
from actorlm.api.ports import Limits, Rendering
from actorlm.api.schema_chat import (
    AssistantMessage,
    ChatCompletionRequest,
    DeveloperMessage,
    Message,
    NamedToolChoice,
    RefusalPart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from actorlm.api.schema_tokenize import TokenizeRequest
from actorlm.errors import BadRequest

_ROLES = {SystemMessage: "system", DeveloperMessage: "system", UserMessage: "user"}


def max_completion_tokens(request: ChatCompletionRequest, room: int) -> int:
    """The most tokens of one choice: what was asked for, cut to the room left. Raises BadRequest if asked for twice."""
    newer, older = request.max_completion_tokens, request.max_tokens
    if newer is not None and older is not None and newer != older:
        raise BadRequest(
            f"max_tokens ({older}) and max_completion_tokens ({newer}) are the same thing; give one", param="max_tokens"
        )
    wanted = newer if newer is not None else older
    return room if wanted is None else min(wanted, room)


def chat_rendering(request: ChatCompletionRequest, limits: Limits) -> Rendering:
    """How the conversation becomes a prompt that leaves room. Raises BadRequest for wishes that exclude each other."""
    wanted = request.max_completion_tokens or request.max_tokens or 1
    return rendering(request, last=prompt_tokens_kept(request, wanted, limits))


def rendering(request: ChatCompletionRequest | TokenizeRequest, last: int | None = None) -> Rendering:
    """How a conversation becomes a prompt, of which `last` tokens are kept. Raises BadRequest as `chat_rendering`."""
    return Rendering(
        add_generation_prompt=speaks_next(request.add_generation_prompt, request.continue_final_message),
        continue_final_message=bool(request.continue_final_message),
        documents=request.documents,
        variables=request.chat_template_kwargs or {},
        add_special_tokens=bool(request.add_special_tokens),
        last=last,
    )


def speaks_next(add_generation_prompt: bool | None, continue_final_message: bool | None) -> bool:
    """Whether the assistant begins a new message: by default, unless the final one is continued."""
    if add_generation_prompt and continue_final_message:
        raise BadRequest(
            "continue_final_message and add_generation_prompt exclude each other; leave one out",
            param="continue_final_message",
        )
    return not continue_final_message if add_generation_prompt is None else add_generation_prompt


def top_logprobs(request: ChatCompletionRequest) -> int | None:
    """How many most probable tokens are wanted in each place; None for no log-probabilities at all.

    Raises BadRequest for what is asked of log-probabilities that are not asked for.
    """
    if request.logprobs:
        return request.top_logprobs or 0
    for name in ("top_logprobs", "logprob_token_ids"):
        if getattr(request, name):
            raise BadRequest(f"{name} needs logprobs to be true", param=name)
    return None


def check_text_only(request: ChatCompletionRequest) -> None:
    """Raises BadRequest if the answer would need a tool call."""
    if request.tool_choice == "required" or isinstance(request.tool_choice, NamedToolChoice):
        raise BadRequest(f"tool_choice: {_why_not(request)}", param="tool_choice")
    if request.tools and request.tool_choice != "none":
        raise BadRequest(f"tools: {CHAT['tools'].note}", param="tools")


def _why_not(request: ChatCompletionRequest) -> str:
    choice, names = request.tool_choice, [tool.function.name for tool in request.tools or ()]
    if not names:
        return "it demands a tool call, and tools is empty"
    if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
        return f"{choice.function.name!r} is none of the tools"
    return CHAT["tool_choice"].note


def conversation(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as dicts with `role` and `content`, and `name`, `tool_calls`, `tool_call_id` where given."""
    return [_turn(message) for message in messages]


def _turn(message: Message) -> dict[str, Any]:
    match message:
        case AssistantMessage():
            turn: dict[str, Any] = {"role": "assistant", "content": _text(message.content) or message.refusal or ""}
            if message.tool_calls:
                turn["tool_calls"] = [_call(call) for call in message.tool_calls]
        case ToolMessage():
            return {"role": "tool", "content": _text(message.content), "tool_call_id": message.tool_call_id}
        case _:
            turn = {"role": _ROLES[type(message)], "content": _text(message.content)}
    if message.name is not None:
        turn["name"] = message.name
    return turn


def _text(content: str | Sequence[TextPart | RefusalPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": _arguments(call.function.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _arguments(text: str) -> Any:
    """Templates print arguments as JSON themselves; text that is no JSON stays text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
