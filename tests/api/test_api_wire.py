"""Every event that is made from a template is the JSON that its struct describes."""

import msgspec
import pytest

from actorlm.api.ports import Delta
from actorlm.api.schema import PromptTokensDetails, Usage
from actorlm.api.schema_chat import ChatCompletionChunk
from actorlm.api.schema_completions import Completion
from actorlm.api.wire import ChatWire, CompletionWire, Identity, json_text

IDENTITY = Identity('id-"\\\u2028é', 1_700_000_000, 'org/"model"\n%d %b')
USAGE = Usage(1, 2, 3, PromptTokensDetails(1))
TEXTS = ["", " hello", 'quote " \\ \n\r\t\x00', "héllo 👩‍🚀 日本 🌶️", "\x85\u2028\u2029", "%d %b {}", "�"]


def events(raw, kind):
    """The events of some bytes; fails unless each is one line of `data:` and an empty one."""
    assert raw.endswith(b"\n\n")
    parts = raw[:-2].split(b"\n\n")
    assert all(part.startswith(b"data: ") and len(part.decode().splitlines()) == 1 for part in parts)
    return [msgspec.json.decode(part[6:], type=kind) for part in parts]


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_b26_chat_events(text, usage):
    wire = ChatWire(IDENTITY, 3, usage)
    raw = wire.opening(2) + wire.text(Delta(2, text, 1))
    raw += wire.finish(Delta(2, "", 0, "length")) + wire.finish(Delta(2, "x", 1, "stop"))
    role, content, end, last, stop = events(raw, ChatCompletionChunk)
    for event in (role, content, end, last, stop):
        assert (event.id, event.created, event.model) == (IDENTITY.id, IDENTITY.created, IDENTITY.model)
        assert event.choices[0].index == 2
        assert event.usage is (None if usage else msgspec.UNSET)
    assert (role.choices[0].delta.role, role.choices[0].delta.content) == ("assistant", "")
    assert (content.choices[0].delta.content, content.choices[0].finish_reason) == (text, None)
    assert (end.choices[0].delta.content, end.choices[0].finish_reason) == (None, "length")
    assert (last.choices[0].delta.content, last.choices[0].finish_reason) == ("x", None)
    assert (stop.choices[0].delta.content, stop.choices[0].finish_reason) == (None, "stop")


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_b26_completion_events(text, usage):
    wire = CompletionWire(IDENTITY, 2, usage, ["", text])
    raw = wire.opening(1) + wire.text(Delta(1, text, 1)) + wire.finish(Delta(1, text, 1, "stop"))
    echo, content, end = events(raw, Completion)
    for event in (echo, content, end):
        assert (event.id, event.created, event.model) == (IDENTITY.id, IDENTITY.created, IDENTITY.model)
        assert (event.choices[0].text, event.choices[0].index) == (text, 1)
        assert event.usage is (None if usage else msgspec.UNSET)
    assert [event.choices[0].finish_reason for event in (echo, content, end)] == [None, None, "stop"]
    assert CompletionWire(IDENTITY, 2, usage, []).opening(1) == b""


def test_b14_usage_events_have_no_choices():
    for wire, kind in (
        (ChatWire(IDENTITY, 1, True), ChatCompletionChunk),
        (CompletionWire(IDENTITY, 1, True, []), Completion),
    ):
        (event,) = events(wire.usage(USAGE), kind)
        assert event.choices == []
        assert event.usage == USAGE


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_json_on_one_line_for_every_reader(text):
    encoded = json_text(text)
    assert msgspec.json.decode(encoded) == text
    assert len(encoded.decode().splitlines()) == 1
