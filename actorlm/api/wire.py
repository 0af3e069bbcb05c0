"""The bytes of answers, from one template per request: a streamed event is prefix, encoded text, suffix.

That costs a third of encoding a struct, and an event is the only thing here that is made once a token. The tests decode
every event into the structs of `schema_chat.py` and `schema_completions.py`, which are its contract.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from actorlm.api.ports import FinishReason
from actorlm.api.schema import Usage
from actorlm.api.schema_chat import ChatChoice, ChatCompletion, ChatMessage
from actorlm.api.schema_completions import Completion, CompletionChoice

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


class Identity(msgspec.Struct, frozen=True):
    """What all events of one answer have in common."""

    id: str
    created: int
    model: str


class Wire(Protocol):
    """One API's way to write an answer. Choices are named by their index."""

    def opening(self, choice: int) -> bytes:
        """The events before a choice's first text; may be none."""

    def text(self, choice: int, text: str) -> bytes:
        """The event of new text."""

    def finish(self, choice: int, text: str, reason: FinishReason) -> bytes:
        """The events of a choice's last text, which may be empty, and of its end."""

    def usage(self, usage: Usage) -> bytes:
        """The event of the usage."""

    def whole(self, texts: Sequence[str], reasons: Sequence[FinishReason], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""


def json_text(text: str) -> bytes:
    """`text` as JSON without the three characters that some readers of lines take for ends of lines."""
    encoded = _encode(text)
    if text.isascii():
        return encoded
    encoded = encoded.replace(b"\xc2\x85", b"\\u0085")
    return encoded.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")


class _Template:
    """The parts of an event around `choices`."""

    def __init__(self, identity: Identity, kind: bytes, with_usage: bool) -> None:
        name, model = json_text(identity.id), json_text(identity.model)
        start = b'{"id":%b,"object":"%b","created":%d,"model":%b' % (name, kind, identity.created, model)
        self.head = b"data: " + start + b',"choices":['
        self.tail = b'],"usage":null}\n\n' if with_usage else b"]}\n\n"

    def usage(self, usage: Usage) -> bytes:
        return self.head + b'],"usage":' + _encode(usage) + b"}\n\n"


class ChatWire:
    """Answers of `/v1/chat/completions`."""

    def __init__(self, identity: Identity, choices: int, with_usage: bool) -> None:
        self._identity = identity
        self._template = template = _Template(identity, b"chat.completion.chunk", with_usage)
        self._heads = [template.head + b'{"index":%d,"delta":{' % choice for choice in range(choices)]
        self._going_on = b'},"logprobs":null,"finish_reason":null}' + template.tail
        self._ended = b'},"logprobs":null,"finish_reason":"%b"}' + template.tail

    def opening(self, choice: int) -> bytes:
        """The role."""
        return self._heads[choice] + b'"role":"assistant","content":""' + self._going_on

    def text(self, choice: int, text: str) -> bytes:
        """Content."""
        return self._heads[choice] + b'"content":' + json_text(text) + self._going_on

    def finish(self, choice: int, text: str, reason: FinishReason) -> bytes:
        """Content if there is any, then an empty delta with the reason."""
        last = self.text(choice, text) if text else b""
        return last + self._heads[choice] + self._ended % reason.encode()

    def usage(self, usage: Usage) -> bytes:
        """A chunk without choices."""
        return self._template.usage(usage)

    def whole(self, texts: Sequence[str], reasons: Sequence[FinishReason], usage: Usage) -> bytes:
        """A ChatCompletion."""
        one, rows = self._identity, enumerate(zip(texts, reasons, strict=True))
        choices = [
            ChatChoice(index, ChatMessage("assistant", text, None), None, reason) for index, (text, reason) in rows
        ]
        return _encode(ChatCompletion(one.id, "chat.completion", one.created, one.model, choices, usage))


class CompletionWire:
    """Answers of `/v1/completions`. `echoes[i]`, if any, comes before the text of choice i."""

    def __init__(self, identity: Identity, choices: int, with_usage: bool, echoes: Sequence[str]) -> None:
        self._identity = identity
        self._echoes = echoes
        self._template = template = _Template(identity, b"text_completion", with_usage)
        self._middles = [b',"index":%d,"logprobs":null,"finish_reason":' % choice for choice in range(choices)]
        self._head, self._tail = template.head + b'{"text":', b"}" + template.tail

    def opening(self, choice: int) -> bytes:
        """The echo."""
        return self.text(choice, self._echoes[choice]) if self._echoes else b""

    def text(self, choice: int, text: str) -> bytes:
        """New text."""
        return self._head + json_text(text) + self._middles[choice] + b"null" + self._tail

    def finish(self, choice: int, text: str, reason: FinishReason) -> bytes:
        """The last text with the reason."""
        return self._head + json_text(text) + self._middles[choice] + b'"%b"' % reason.encode() + self._tail

    def usage(self, usage: Usage) -> bytes:
        """A chunk without choices."""
        return self._template.usage(usage)

    def whole(self, texts: Sequence[str], reasons: Sequence[FinishReason], usage: Usage) -> bytes:
        """A Completion."""
        one, echoes = self._identity, self._echoes or [""] * len(texts)
        rows = enumerate(zip(echoes, texts, reasons, strict=True))
        choices = [CompletionChoice(echo + text, index, None, reason) for index, (echo, text, reason) in rows]
        return _encode(Completion(one.id, "text_completion", one.created, one.model, choices, usage))
