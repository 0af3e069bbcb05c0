"""Events however their bytes were cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorlm.remote import sse
from actorlm.remote.failure import Failure
from actorlm.remote.sse import Events

STREAM = (
    b": a comment\n\n"
    b'data: {"a": 1}\n\n'
    b"event: named\nid: 7\ndata: two\n\n"
    b"data:no space\n\n"
    b"data: first\ndata: second\n\n"
    b"retry: 5\n\n"
    b"\n\n"
    b"data: [DONE]\n\n"
)
DATA = [b'{"a": 1}', b"two", b"no space", b"first\nsecond", b"[DONE]"]


def fed(pieces):
    events = Events()
    found = [event for piece in pieces for event in events.feed(piece)]
    return found + events.end()


@pytest.mark.parametrize("stream", [STREAM, STREAM.replace(b"\n", b"\r\n")], ids=["LF", "CR LF"])
def test_every_cut_gives_the_same_events(stream):
    assert fed([stream]) == DATA
    assert fed([stream[index : index + 1] for index in range(len(stream))]) == DATA
    for cut in range(len(stream)):
        assert fed([stream[:cut], stream[cut:]]) == DATA


@given(st.lists(st.binary(min_size=1).filter(lambda data: not set(data) & set(b"\r\n")), max_size=5), st.data())
def test_any_data_comes_through(contents, data):
    stream = b"".join(b"data: " + content + b"\n\n" for content in contents)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    ends = [0, *cuts, len(stream)]
    assert fed([stream[a:b] for a, b in pairwise(ends)]) == contents


def test_a_last_event_may_lack_its_blank_line():
    assert fed([b"data: one\n\ndata: [DONE]\n"]) == [b"one", b"[DONE]"]
    assert fed([b"data: one\n\n: bye"]) == [b"one"]


def test_an_event_without_end_is_a_failure(monkeypatch):
    monkeypatch.setattr(sse, "MAX_EVENT", 100)
    events = Events()
    events.feed(b"data: " + b"x" * 94)
    with pytest.raises(Failure) as failed:
        events.feed(b"x")
    assert failed.value.kind == "endless event"
