"""The bytes of answers, from one template per request: a streamed event is prefix, encoded text, suffix.

That costs a third of encoding a struct, and an event is the only thing here that is made once a token. The tests decode
every event into the structs of `schema_chat.py` and `schema_completions.py`, which are its contract.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET

from actorlm.api.logprobs import ChatFormat, CompletionFormat
from actorlm.api.ports import Delta
from actorlm.api.schema import Usage
from actorlm.api.schema_chat import ChatChoice, ChatCompletion, ChatLogprobs, ChatMessage
from actorlm.api.schema_completions import Completion, CompletionChoice, CompletionLogprobs
from actorlm.logprobs import Scores

DONE = b"data: [DONE]\n\n"
_GOING_ON = b'},"logprobs":null,"finish_reason":null'

_encode = msgspec.json.Encoder().encode


class Identity(msgspec.Struct, frozen=True):
    """What all events of one answer have in common."""

    id: str
    created: int
    model: str


class Wire(Protocol):
    """One API's way to write an answer. Where `usage` is given, events carry it as the usage so far."""

    def opening(self, choice: int, usage: Usage | None = None) -> bytes:
        """The events before a choice's first text; may be none."""

    def shows(self, delta: Delta) -> bool:
        """Whether there is something new to tell of a choice that goes on."""

    def text(self, delta: Delta, usage: Usage | None = None) -> bytes:
        """The event of new text, and of what is known of its tokens."""

    def finish(self, delta: Delta, usage: Usage | None = None) -> bytes:
        """The events of a choice's last text, which may be empty, and of its end."""

    def usage(self, usage: Usage) -> bytes:
        """The event of the final usage."""

    def whole(self, choices: Sequence[Delta], usage: Usage) -> bytes:
        """The body of an answer that is not streamed, from all that each choice has gained."""


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
        self._end = b',"usage":null}\n\n' if with_usage else b"}\n\n"

    def tail(self, usage: Usage | None, fields: bytes = b"") -> bytes:
        """What follows the choices; `fields` are further ones, each after a comma."""
        end = self._end if usage is None else b',"usage":' + _encode(usage) + b"}\n\n"
        return b"]" + fields + end

    def usage(self, usage: Usage) -> bytes:
        return self.head + self.tail(usage)


class ChatWire:
    """Answers of `/v1/chat/completions`.

    Without a format nobody has asked for log-probabilities, without `prompt_ids` nobody for token ids.
    """

    def __init__(
        self,
        identity: Identity,
        choices: int,
        with_usage: bool,
        form: ChatFormat | None = None,
        prompt_ids: list[int] | None = None,
    ) -> None:
        self._identity = identity
        self._form = form
        self._prompt_ids = prompt_ids
        self._template = template = _Template(identity, b"chat.completion.chunk", with_usage)
        self._heads = [template.head + b'{"index":%d,"delta":{' % choice for choice in range(choices)]
        self._plain_end = _GOING_ON + b"}" + template.tail(None)

    def opening(self, choice: int, usage: Usage | None = None) -> bytes:
        """The role, and the prompt's token ids."""
        event = self._heads[choice] + b'"role":"assistant","content":""' + _GOING_ON + self._ids() + b"}"
        prompt = b"" if self._prompt_ids is None else b',"prompt_token_ids":' + _encode(self._prompt_ids)
        return event + self._template.tail(usage, prompt)

    def shows(self, delta: Delta) -> bool:
        """Content, log-probabilities or token ids."""
        return bool(delta.text or delta.scores or (delta.ids and self._prompt_ids is not None))

    def text(self, delta: Delta, usage: Usage | None = None) -> bytes:
        """Content."""
        event = self._heads[delta.choice] + b'"content":' + json_text(delta.text)
        if usage is None and self._form is None and self._prompt_ids is None:
            return event + self._plain_end
        logprobs = self._logprobs(delta.scores)
        middle = _GOING_ON if logprobs is None else b'},"logprobs":%b,"finish_reason":null' % json_text(logprobs)
        return event + middle + self._ids(delta) + b"}" + self._template.tail(usage)

    def finish(self, delta: Delta, usage: Usage | None = None) -> bytes:
        """Content if there is any, then an empty delta with the reason."""
        assert delta.finish is not None, "a last delta has a reason"
        last = self.text(delta, usage) if self.shows(delta) else b""
        end = b'},"logprobs":null,"finish_reason":"%b"' % delta.finish.encode() + self._ids() + b"}"
        return last + self._heads[delta.choice] + end + self._template.tail(usage)

    def usage(self, usage: Usage) -> bytes:
        """A chunk without choices."""
        return self._template.usage(usage)

    def whole(self, choices: Sequence[Delta], usage: Usage) -> bytes:
        """A ChatCompletion."""
        one, prompt = self._identity, UNSET if self._prompt_ids is None else self._prompt_ids
        made = [self._whole_choice(delta) for delta in choices]
        return _encode(ChatCompletion(one.id, "chat.completion", one.created, one.model, made, usage, prompt))

    def _whole_choice(self, delta: Delta) -> ChatChoice:
        assert delta.finish is not None, "a whole choice has ended"
        message = ChatMessage("assistant", delta.text, None)
        ids = UNSET if self._prompt_ids is None else list(delta.token_ids)
        return ChatChoice(delta.choice, message, self._logprobs(delta.scores), delta.finish, ids)

    def _ids(self, delta: Delta | None = None) -> bytes:
        if self._prompt_ids is None:
            return b""
        return b',"token_ids":' + (b"[]" if delta is None else _encode(delta.token_ids))

    def _logprobs(self, scores: Scores | None) -> ChatLogprobs | None:
        return self._form.of(scores) if self._form is not None and scores else None


class CompletionWire:
    """Answers of `/v1/completions`. `echoes[i]`, if any, comes before the text of choice i.

    Without a format nobody has asked for log-probabilities, without `prompt_ids`, which are those of each choice,
    nobody for token ids.
    """

    def __init__(
        self,
        identity: Identity,
        choices: int,
        with_usage: bool,
        echoes: Sequence[str],
        form: CompletionFormat | None = None,
        prompt_ids: Sequence[list[int]] | None = None,
    ) -> None:
        self._identity = identity
        self._echoes = echoes
        self._form = form
        self._prompt_ids = prompt_ids
        self._template = template = _Template(identity, b"text_completion", with_usage)
        self._middles = [b',"index":%d,"logprobs":null,"finish_reason":' % choice for choice in range(choices)]
        self._head = template.head + b'{"text":'
        self._plain_ends = [middle + b"null}" + template.tail(None) for middle in self._middles]

    def opening(self, choice: int, usage: Usage | None = None) -> bytes:
        """The echo with the first of its log-probabilities, and the prompt's token ids."""
        if not self._echoes and self._prompt_ids is None:
            return b""
        echo = self._echoes[choice] if self._echoes else ""
        logprobs = None if self._form is None else self._form.opening(choice)
        ids = b"" if self._prompt_ids is None else b',"prompt_token_ids":' + _encode(self._prompt_ids[choice])
        return self._event(Delta(choice, echo, 0), logprobs, b"null" + ids, usage)

    def shows(self, delta: Delta) -> bool:
        """Text, log-probabilities or token ids."""
        return bool(delta.text or delta.scores or (delta.ids and self._prompt_ids is not None))

    def text(self, delta: Delta, usage: Usage | None = None) -> bytes:
        """New text."""
        if usage is None and self._form is None and self._prompt_ids is None:
            return self._head + json_text(delta.text) + self._plain_ends[delta.choice]
        return self._event(delta, self._logprobs(delta), b"null", usage)

    def finish(self, delta: Delta, usage: Usage | None = None) -> bytes:
        """The last text with the reason."""
        assert delta.finish is not None, "a last delta has a reason"
        return self._event(delta, self._logprobs(delta), b'"%b"' % delta.finish.encode(), usage)

    def usage(self, usage: Usage) -> bytes:
        """A chunk without choices."""
        return self._template.usage(usage)

    def whole(self, choices: Sequence[Delta], usage: Usage) -> bytes:
        """A Completion."""
        one, made = self._identity, [self._whole_choice(delta) for delta in choices]
        return _encode(Completion(one.id, "text_completion", one.created, one.model, made, usage))

    def _whole_choice(self, delta: Delta) -> CompletionChoice:
        index = delta.choice
        text, logprobs = (self._echoes[index] if self._echoes else "") + delta.text, self._all_logprobs(delta)
        if self._prompt_ids is None:
            return CompletionChoice(text, index, logprobs, delta.finish)
        ids, prompt = list(delta.token_ids), self._prompt_ids[index]
        return CompletionChoice(text, index, logprobs, delta.finish, ids, prompt)

    def _event(self, delta: Delta, logprobs: CompletionLogprobs | None, reason: bytes, usage: Usage | None) -> bytes:
        middle = self._middles[delta.choice]
        if logprobs is not None:
            middle = b',"index":%d,"logprobs":%b,"finish_reason":' % (delta.choice, json_text(logprobs))
        ids = b"" if self._prompt_ids is None else b',"token_ids":' + _encode(delta.token_ids)
        return self._head + json_text(delta.text) + middle + reason + ids + b"}" + self._template.tail(usage)

    def _logprobs(self, delta: Delta) -> CompletionLogprobs | None:
        return self._form.of(delta.choice, delta.scores) if self._form is not None and delta.scores else None

    def _all_logprobs(self, delta: Delta) -> CompletionLogprobs | None:
        if self._form is None:
            return None
        opening = self._form.opening(delta.choice) or CompletionLogprobs([], [], [], [])
        rest = self._form.of(delta.choice, delta.scores or Scores())
        pairs = zip(msgspec.structs.astuple(opening), msgspec.structs.astuple(rest), strict=True)
        return CompletionLogprobs(*(first + second for first, second in pairs))
