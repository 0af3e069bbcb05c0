"""The bytes of answers, from one template per request: a streamed event is prefix, encoded text, suffix.

That costs a third of encoding a struct, and an event is the only thing here that is made once a token. The tests decode
every event into the structs of `schema_chat.py` and `schema_completions.py`, which are its contract.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from actorlm.api.logprobs import ChatFormat, CompletionFormat
from actorlm.api.ports import FinishReason
from actorlm.api.schema import Usage
from actorlm.api.schema_chat import ChatChoice, ChatCompletion, ChatLogprobs, ChatMessage
from actorlm.api.schema_completions import Completion, CompletionChoice, CompletionLogprobs
from actorlm.logprobs import Scores

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

    def text(self, choice: int, text: str, scores: Scores | None) -> bytes:
        """The event of new text, and of what is known of its tokens."""

    def finish(self, choice: int, text: str, scores: Scores | None, reason: FinishReason) -> bytes:
        """The events of a choice's last text, which may be empty, and of its end."""

    def usage(self, usage: Usage) -> bytes:
        """The event of the usage."""

    def whole(
        self, texts: Sequence[str], scores: Sequence[Scores | None], reasons: Sequence[FinishReason], usage: Usage
    ) -> bytes:
        """The body of an answer that is not streamed."""


def json_text(value: object) -> bytes:
    """A text, or a struct with texts, as JSON without the characters that some readers of lines take for their ends."""
    encoded = _encode(value)
    if encoded.isascii():
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
    """Answers of `/v1/chat/completions`. Without a format nobody has asked for log-probabilities."""

    def __init__(self, identity: Identity, choices: int, with_usage: bool, form: ChatFormat | None = None) -> None:
        self._identity = identity
        self._form = form
        self._template = template = _Template(identity, b"chat.completion.chunk", with_usage)
        self._heads = [template.head + b'{"index":%d,"delta":{' % choice for choice in range(choices)]
        self._going_on = b'},"logprobs":null,"finish_reason":null}' + template.tail
        self._scored = b'},"logprobs":%b,"finish_reason":null}' + template.tail
        self._ended = b'},"logprobs":null,"finish_reason":"%b"}' + template.tail

    def opening(self, choice: int) -> bytes:
        """The role."""
        return self._heads[choice] + b'"role":"assistant","content":""' + self._going_on

    def text(self, choice: int, text: str, scores: Scores | None = None) -> bytes:
        """Content."""
        logprobs = self._logprobs(scores)
        tail = self._going_on if logprobs is None else self._scored % json_text(logprobs)
        return self._heads[choice] + b'"content":' + json_text(text) + tail

    def finish(self, choice: int, text: str, scores: Scores | None, reason: FinishReason) -> bytes:
        """Content if there is any, then an empty delta with the reason."""
        last = self.text(choice, text, scores) if text or scores else b""
        return last + self._heads[choice] + self._ended % reason.encode()

    def usage(self, usage: Usage) -> bytes:
        """A chunk without choices."""
        return self._template.usage(usage)

    def whole(
        self, texts: Sequence[str], scores: Sequence[Scores | None], reasons: Sequence[FinishReason], usage: Usage
    ) -> bytes:
        """A ChatCompletion."""
        one, rows = self._identity, enumerate(zip(texts, scores, reasons, strict=True))
        choices = [
            ChatChoice(index, ChatMessage("assistant", text, None), self._logprobs(known), reason)
            for index, (text, known, reason) in rows
        ]
        return _encode(ChatCompletion(one.id, "chat.completion", one.created, one.model, choices, usage))

    def _logprobs(self, scores: Scores | None) -> ChatLogprobs | None:
        return self._form.of(scores) if self._form is not None and scores else None


class CompletionWire:
    """Answers of `/v1/completions`. `echoes[i]`, if any, comes before the text of choice i.

    Without a format nobody has asked for log-probabilities.
    """

    def __init__(
        self,
        identity: Identity,
        choices: int,
        with_usage: bool,
        echoes: Sequence[str],
        form: CompletionFormat | None = None,
    ) -> None:
        self._identity = identity
        self._echoes = echoes
        self._form = form
        self._template = template = _Template(identity, b"text_completion", with_usage)
        self._middles = [b',"index":%d,"logprobs":null,"finish_reason":' % choice for choice in range(choices)]
        self._head, self._tail = template.head + b'{"text":', b"}" + template.tail

    def opening(self, choice: int) -> bytes:
        """The echo, and of its log-probabilities the first."""
        if not self._echoes:
            return b""
        logprobs = None if self._form is None else self._form.opening(choice)
        return self._event(choice, self._echoes[choice], logprobs, b"null")

    def text(self, choice: int, text: str, scores: Scores | None = None) -> bytes:
        """New text."""
        return self._event(choice, text, self._logprobs(choice, scores), b"null")

    def finish(self, choice: int, text: str, scores: Scores | None, reason: FinishReason) -> bytes:
        """The last text with the reason."""
        return self._event(choice, text, self._logprobs(choice, scores), b'"%b"' % reason.encode())

    def usage(self, usage: Usage) -> bytes:
        """A chunk without choices."""
        return self._template.usage(usage)

    def whole(
        self, texts: Sequence[str], scores: Sequence[Scores | None], reasons: Sequence[FinishReason], usage: Usage
    ) -> bytes:
        """A Completion."""
        one, echoes = self._identity, self._echoes or [""] * len(texts)
        rows = enumerate(zip(echoes, texts, scores, reasons, strict=True))
        choices = [
            CompletionChoice(echo + text, index, self._all_logprobs(index, known), reason)
            for index, (echo, text, known, reason) in rows
        ]
        return _encode(Completion(one.id, "text_completion", one.created, one.model, choices, usage))

    def _event(self, choice: int, text: str, logprobs: CompletionLogprobs | None, reason: bytes) -> bytes:
        middle = self._middles[choice]
        if logprobs is not None:
            middle = b',"index":%d,"logprobs":%b,"finish_reason":' % (choice, json_text(logprobs))
        return self._head + json_text(text) + middle + reason + self._tail

    def _logprobs(self, choice: int, scores: Scores | None) -> CompletionLogprobs | None:
        return self._form.of(choice, scores) if self._form is not None and scores else None

    def _all_logprobs(self, choice: int, scores: Scores | None) -> CompletionLogprobs | None:
        if self._form is None:
            return None
        opening = self._form.opening(choice) or CompletionLogprobs([], [], [], [])
        rest = self._form.of(choice, scores or Scores())
        pairs = zip(msgspec.structs.astuple(opening), msgspec.structs.astuple(rest), strict=True)
        return CompletionLogprobs(*(first + second for first, second in pairs))
