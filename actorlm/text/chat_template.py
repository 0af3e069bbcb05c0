"""Renders chats to prompts by the model's own Jinja template, with the semantics of transformers' environment.

The environment is in text/template_environment.py. Templates come with the model, never from a request.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from actorlm.checkpoint.description import ModelDescription
from actorlm.checkpoint.gguf import GgufFile
from actorlm.checkpoint.typed_json import convert, read_json
from actorlm.errors import BadRequest, ModelError
from actorlm.text.template_environment import template_environment

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The template of the built-in byte vocabulary."""

DEFAULT, WITH_TOOLS = "default", "tool_use"
"""Names of templates, where a model has several."""

RENDER_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)
"""What a template raises on messages that it cannot render."""


class ChatTemplate:
    """The compiled templates of one model. `variables` are its special tokens by name, such as `bos_token`."""

    def __init__(
        self, sources: Mapping[str, str], variables: Mapping[str, str], now: Callable[[], datetime], where: str
    ) -> None:
        environment = template_environment(now)
        try:
            self._templates = {name: environment.from_string(source) for name, source in sources.items()}
        except jinja2.TemplateError as error:
            raise ModelError(f"the chat template in {where} does not compile: {error}") from error
        self._variables = dict(variables)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt of a chat. `kwargs` are further variables of the template.

        A field that is None counts as absent, and absent content as empty, so that no template prints "None". Raises
        BadRequest with the template's own message if it cannot render these messages.
        """
        if "messages" in kwargs:
            raise BadRequest("messages cannot be a variable of the chat template", param="chat_template_kwargs")
        template = self._templates.get(WITH_TOOLS if tools else DEFAULT) or self._templates[DEFAULT]
        plain = [{"content": "", **{k: v for k, v in message.items() if v is not None}} for message in messages]
        variables = {**self._variables, "documents": None, **kwargs}
        variables |= {"messages": plain, "tools": tools, "add_generation_prompt": add_generation_prompt}
        try:
            return template.render(variables)
        except RENDER_ERRORS as error:
            raise BadRequest(f"the model's chat template refuses these messages: {error}", param="messages") from error


def load_chat_template(
    description: ModelDescription, *, now: Callable[[], datetime] = datetime.now
) -> ChatTemplate | None:
    """The chat template of a model, None if it has none. Raises ModelError if it is damaged. `now` is local time."""
    match description.format:
        case "bytes":
            return ChatTemplate({DEFAULT: CHATML}, {}, now, "the byte vocabulary")
        case "gguf":
            sources, variables = _from_gguf(description.path)
        case "safetensors":
            sources, variables = _from_directory(Path(description.path))
    if not sources:
        return None
    if DEFAULT not in sources:
        raise ModelError(f"{description.path} has chat templates named {', '.join(sources)}, but none named {DEFAULT}")
    return ChatTemplate(sources, variables, now, description.path)


class _GgufTokens(msgspec.Struct, frozen=True):
    """The special tokens under the names that templates use, read from the keys `tokenizer.ggml.*`."""

    tokens: list[str] = []
    bos_token: int = msgspec.field(name="bos_token_id", default=-1)
    eos_token: int = msgspec.field(name="eos_token_id", default=-1)
    unk_token: int = msgspec.field(name="unknown_token_id", default=-1)
    pad_token: int = msgspec.field(name="padding_token_id", default=-1)


def _from_gguf(path: str) -> tuple[dict[str, str], dict[str, str]]:
    with GgufFile(path) as file:
        templates = {DEFAULT: file.metadata.get("tokenizer.chat_template"), **file.section("tokenizer.chat_template.")}
        special = convert(file.section("tokenizer.ggml."), _GgufTokens, f"{path}, tokenizer.ggml.*")
    ids = {name: getattr(special, name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    tokens = {name: special.tokens[i] for name, i in ids.items() if 0 <= i < len(special.tokens)}
    return {name: source for name, source in templates.items() if isinstance(source, str)}, tokens


class _NamedTemplate(msgspec.Struct, frozen=True):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct, frozen=True):
    chat_template: str | list[_NamedTemplate] | None = None


def _from_directory(directory: Path) -> tuple[dict[str, str], dict[str, str]]:
    path, jinja = directory / "tokenizer_config.json", directory / "chat_template.jinja"
    raw = read_json(path, dict[str, Any]) if path.exists() else {}
    template = convert(raw, _TokenizerConfig, str(path)).chat_template
    sources = {t.name: t.template for t in template} if isinstance(template, list) else {}
    if isinstance(template, str):
        sources[DEFAULT] = template
    if jinja.exists():
        sources[DEFAULT] = jinja.read_text(encoding="utf-8")
    return sources, _special_tokens(directory, raw)


def _special_tokens(directory: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    path = directory / "special_tokens_map.json"
    values = {**(read_json(path, dict[str, Any]) if path.exists() else {}), **tokenizer_config}
    tokens = {}
    for name, value in values.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens
