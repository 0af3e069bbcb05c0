"""Deltas that wait for a frontend are merged, and leave in messages of bounded size."""

from actorlm.messages.frontend import Finish
from actorlm.text import delta_batch
from actorlm.text.delta_batch import DeltaBatch
from actorlm.wire import read_int32, read_int64


def _rows(message):
    return list(
        zip(read_int64(message.requests), message.texts, read_int32(message.counts), message.finishes, strict=True)
    )


def test_rows_of_one_request_are_merged():
    batch = DeltaBatch()
    batch.add(7, 0, [1, 2], "ab", Finish.NOT_YET, 16)
    batch.add(8, 0, [3], "x", Finish.NOT_YET, 0)
    batch.add(7, 0, [4], "c", Finish.STOP, 16)
    message = batch.message()
    assert _rows(message) == [(7, "abc", 3, Finish.STOP), (8, "x", 1, Finish.NOT_YET)]
    assert list(read_int32(message.tokens)) == [1, 2, 4, 3]
    assert list(read_int32(message.cached)) == [16, 0]


def test_what_was_not_sent_stays():
    batch = DeltaBatch()
    batch.add(7, 0, [1], "a", Finish.NOT_YET, 0)
    batch.message()
    batch.add(7, 0, [2], "b", Finish.NOT_YET, 0)
    assert _rows(batch.message()) == [(7, "ab", 2, Finish.NOT_YET)]
    batch.sent()
    assert not batch


def test_a_newer_attempt_replaces_an_older_one():
    batch = DeltaBatch()
    batch.add(7, 0, [1], "old", Finish.NOT_YET, 0)
    batch.add(7, 1, [2], "new", Finish.NOT_YET, 0)
    assert _rows(batch.message()) == [(7, "new", 1, Finish.NOT_YET)]


def test_a_closed_request_is_dropped():
    batch = DeltaBatch()
    batch.add(7, 0, [1], "a", Finish.NOT_YET, 0)
    batch.drop(7)
    batch.drop(8)
    assert not batch


def test_much_text_leaves_in_several_messages(monkeypatch):
    monkeypatch.setattr(delta_batch, "MAX_SIZE", 10)
    batch = DeltaBatch()
    for request in range(5):
        batch.add(request, 0, [request], "12345", Finish.NOT_YET, 0)
    seen = []
    while batch:
        message = batch.message()
        assert sum(map(len, message.texts)) <= 15
        seen += _rows(message)
        batch.sent()
    assert [request for request, *_ in seen] == list(range(5))
