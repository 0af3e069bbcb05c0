"""Renders chats to prompts by the model's own Jinja template, with the semantics of transformers' environment.

The environment is in text/template_environment.py. Templates come with the model, never from a request.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
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

RESERVED = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "tokenize",
    }
)
"""What a request says in fields of its own, or cannot say: no variable of a template has these names."""

HERE = "<<the final message ends here>> "
"""Ends a final message that is to be continued. The space shows whether the template strips its content."""


class ChatTemplate:
    """The compiled templates of one model. `variables` are its special tokens by name, such as `bos_token`."""

    def __init__(
        self, sources: Mapping[str, str], variables: Mapping[str, str], now: Callable[[], datetime], where: str
    ) -> None:
        environment = template_environment(now)
        try:
            self._templates = {name: environment.from_string(source) for name, source in sources.items()}
            free = [jinja2.meta.find_undeclared_variables(environment.parse(text)) for text in sources.values()]
        except jinja2.TemplateError as error:
            raise ModelError(f"the chat template in {where} does not compile: {error}") from error
        self._variables = dict(variables)
        self._reserved = RESERVED.union(variables, environment.globals)
        self._mentioned = frozenset[str]().union(*free)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a chat. Of `variables` the template sees those that it mentions.

        With `continue_final_message` the prompt ends where the content of the last message does. A field that is None
        counts as absent, and absent content as empty, so that no template prints "None". Raises BadRequest with the
        template's own message if it cannot render these messages, for a variable whose name is reserved, and for
        documents where the template shows none.
        """
        taken = self._taken(variables or {})
        if documents and "documents" not in self._mentioned:
            raise BadRequest(
                "this model's chat template takes no documents; write them in a message", param="documents"
            )
        plain = [{"content": "", **{k: v for k, v in message.items() if v is not None}} for message in messages]
        if continue_final_message:
            plain[-1]["content"] += HERE
        text = self._render(
            {
                **taken,
                "messages": plain,
                "tools": tools,
                "documents": documents,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        return _until_here(text) if continue_final_message else text

    def without_effect(self, variables: Mapping[str, Any]) -> list[str]:
        """The names among `variables` that the template does not mention."""
        return [name for name in variables if name not in self._mentioned]

    def _taken(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        for name in variables:
            if name in self._reserved:
                raise BadRequest(
                    f"{name} cannot be a variable of the chat template: the name is reserved; take it out",
                    param="chat_template_kwargs",
                )
        return {name: value for name, value in variables.items() if name in self._mentioned}

    def _render(self, variables: Mapping[str, Any]) -> str:
        template = self._templates.get(WITH_TOOLS if variables["tools"] else DEFAULT) or self._templates[DEFAULT]
        try:
            return template.render({**self._variables, **variables})
        except RENDER_ERRORS as error:
            raise BadRequest(f"the model's chat template refuses these messages: {error}", param="messages") from error


def _until_here(text: str) -> str:
    """The text up to the end of the final message's content, without the white space that the template would strip."""
    end = text.rfind(HERE.rstrip())
    if end < 0:
        raise BadRequest("this model's chat template does not show the final message", param="continue_final_message")
    return text[:end] if text.startswith(HERE, end) else text[:end].rstrip()


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
