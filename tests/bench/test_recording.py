"""Times of a stream, on a clock that the test moves."""

import pytest

from actorlm.bench.recording import Recording
from actorlm.remote.failure import Failure


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def sse(data):
    return b"data: " + data + b"\n\n"


def text(value, finish="null"):
    return sse(b'{"choices": [{"index": 0, "text": "%s", "finish_reason": %s}]}' % (value.encode(), finish.encode()))


USAGE = sse(b'{"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 6}}')


def recorded(clock, pieces):
    """Pieces are (time, bytes)."""
    recording = Recording(clock)
    for clock.now, data in pieces:
        recording.receive(data)
    return recording


def test_a_stream(clock):
    recording = recorded(
        clock,
        [(101, text("")), (102, text("a")), (103, text("b")), (103.5, b": ping\n\n"), (106, text("c", '"stop"')),
         (107, USAGE)],
    )  # fmt: skip
    clock.now = 108
    outcome = recording.complete()
    assert outcome.first == 2, "an event without text is not the first"
    assert outcome.gaps == [1, 3]
    assert outcome.per_token == 4 / 5, "five tokens follow the first"
    assert (outcome.began, outcome.ended, outcome.whole, outcome.failure) == (100, 108, True, None)
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.counted) == (10, 6, True)


def test_the_time_is_that_of_the_bytes_that_complete_an_event(clock):
    whole = text("a")
    outcome = recorded(clock, [(101, whole[:20]), (105, whole[20:] + text("b")), (106, text("", '"stop"'))]).complete()
    assert list(outcome.times) == [105, 105]


def test_without_usage_an_event_is_a_token(clock):
    outcome = recorded(clock, [(101, text("a")), (102, text("b")), (103, text("c", '"stop"'))]).complete()
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.counted) == (0, 3, False)
    assert outcome.per_token == 1


def test_a_silent_stream_has_no_first_token(clock):
    outcome = recorded(clock, [(101, text("", '"stop"')), (101, USAGE)]).complete()
    assert (outcome.first, outcome.gaps, outcome.per_token, outcome.whole) == (None, [], None, True)


def test_one_that_fails(clock):
    recording = recorded(clock, [(101, text("a"))])
    with pytest.raises(Failure, match="cut off") as cut:
        recording.complete()
    clock.now = 109
    outcome = recording.failed(cut.value)
    assert (outcome.failure, outcome.whole, outcome.first, outcome.ended) == ("cut off", False, 1, 109)


def test_one_that_we_end(clock):
    outcome = recorded(clock, [(101, text("a")), (103, text("b"))]).interrupted()
    assert (outcome.failure, outcome.whole, outcome.gaps) == (None, False, [2])
