"""What one client is told: gathered, in order, and no more than it reads."""

import asyncio

import pytest

from actorlm.actors.outbox import MAX_ROWS, PING_BYTES, PING_EVERY, WINDOW, WINDOW_BYTES, Outbox
from actorlm.api.ports import Delta
from actorlm.errors import ProtocolError
from actorlm.messages.client import Ping, RequestCompleted, TextGenerated
from actorlm.messages.frontend import Finish
from actorlm.wire import int32, int64

DONE = RequestCompleted(1, 2, 3, 0)


def delta(text, *ids, choice=0, finish=None):
    return Delta(choice, text, len(ids), finish, 4, ids=int32(ids))


async def turn():
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.fixture
def sent():
    return []


@pytest.fixture
def outbox(sent):
    return Outbox(sent.append)


async def test_all_of_a_turn_is_one_message_in_columns(outbox, sent):
    outbox.add(7, delta("a", 1, 2))
    outbox.add(9, delta("", choice=3))
    outbox.add(7, delta("é", 5, finish="length", choice=1))
    assert not sent
    await turn()
    assert sent == [
        TextGenerated(
            int64([7, 9, 7]), int32([0, 3, 1]), int32([2, 0, 1]), int32([1, 2, 5]), ("a", "", "é"),
            bytes([0, 0, Finish.LENGTH]), int32([4, 4, 4]),
        )
    ]  # fmt: skip


async def test_an_end_comes_after_all_text(outbox, sent):
    outbox.end(DONE)
    outbox.add(1, delta("x", 1))
    await turn()
    assert [type(message) for message in sent] == [TextGenerated, RequestCompleted]


async def test_many_rows_are_several_messages(outbox, sent):
    for number in range(MAX_ROWS + 1):
        outbox.add(number, delta("x", 1))
    await turn()
    assert [len(message.texts) for message in sent] == [MAX_ROWS, 1]


async def send(outbox, count):
    for _ in range(count):
        outbox.add(1, delta("x", 1))
        await turn()


async def test_pings_come_with_every_few_messages(outbox, sent):
    await send(outbox, 2 * PING_EVERY)
    assert [message for message in sent if isinstance(message, Ping)] == [Ping(PING_EVERY), Ping(2 * PING_EVERY)]


async def test_b24_a_client_that_does_not_read_keeps_its_requests_waiting(outbox, sent):
    await send(outbox, WINDOW - 1)
    assert outbox.has_room
    await send(outbox, 1)
    assert not outbox.has_room
    waiting = asyncio.ensure_future(outbox.progress())
    await turn()
    outbox.pong(0)
    await turn()
    assert not waiting.done()
    outbox.pong(PING_EVERY)
    await asyncio.wait_for(waiting, 1)
    assert outbox.has_room


async def test_b24_what_is_unread_is_bounded_in_bytes_too(outbox, sent):
    """Large messages are asked after sooner, so that there is room again as soon as they are read."""
    for _ in range(WINDOW_BYTES // PING_BYTES):
        assert outbox.has_room
        outbox.add(1, delta("x" * PING_BYTES))
        await turn()
    assert not outbox.has_room
    pings = [message.number for message in sent if isinstance(message, Ping)]
    assert pings == list(range(1, WINDOW_BYTES // PING_BYTES + 1))
    outbox.pong(1)
    assert outbox.has_room


async def test_beats_count_until_there_is_an_answer(outbox, sent):
    for _ in range(3):
        outbox.beat()
    assert (outbox.unanswered, sent) == (3, [Ping(0)] * 3)
    outbox.pong(0)
    assert outbox.unanswered == 0


@pytest.mark.parametrize("number", [4, 6, 2**63 - 1])
async def test_a_pong_of_a_ping_that_never_was(outbox, number):
    await send(outbox, 5)
    outbox.beat()
    outbox.pong(4)
    outbox.pong(5)
    with pytest.raises(ProtocolError, match="Pong"):
        outbox.pong(number)
