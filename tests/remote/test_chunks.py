"""What a stream says, and whether it came to its end."""

import json

import pytest
from odd_server import USAGE, chatted, said

from actorlm.remote.chunks import Chunks
from actorlm.remote.failure import Failure


def stream(*events):
    return b"".join(b"data: " + (e if isinstance(e, bytes) else json.dumps(e).encode()) + b"\n\n" for e in events)


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (said("a"), True),
        (said(""), False),
        (said(None, "stop"), False),
        (chatted("a"), True),
        (chatted("", role="assistant"), False),
        (chatted(None, reasoning_content="hm"), True),
        (chatted(None, reasoning="hm"), True),
        (chatted(None, tool_calls=[{"index": 0, "function": {"arguments": "{"}}]), True),
        (USAGE, False),
    ],
)
def test_whether_an_event_says_something(event, says):
    (chunk,) = Chunks().feed(stream(event))
    assert any(choice.says for choice in chunk.choices) is says


@pytest.mark.parametrize(
    "last", [[b"[DONE]"], [said("", "stop")], [chatted(None, "length")], [said("b", "stop"), USAGE, b"[DONE]"]]
)
def test_a_stream_that_ends(last):
    chunks = Chunks()
    chunks.feed(stream(said("a"), *last))
    assert chunks.end() == []


def test_done_may_lack_its_blank_line():
    chunks = Chunks()
    chunks.feed(stream(said("a")) + b"data: [DONE]\n")
    assert chunks.end() == []


@pytest.mark.parametrize(
    ("events", "kind", "named"),
    [
        ([said("a")], "cut off", "without finish_reason"),
        ([], "cut off", "without finish_reason"),
        ([b"nonsense"], "unreadable event", "nonsense"),
        ([b'{"choices": [{"text": 5}]}'], "unreadable event", "Expected `str"),
        ([b'"\xff"'], "unreadable event", ""),
        ([said("a"), {"error": {"message": "engine died", "code": 500}}], "error in the stream", "engine died"),
        ([said("a"), {"error": "engine died"}], "error in the stream", "engine died"),
    ],
)
def test_what_fails_is_named(events, kind, named):
    chunks = Chunks()
    with pytest.raises(Failure, match=named or None) as failed:
        chunks.feed(stream(*events))
        chunks.end()
    assert failed.value.kind == kind
