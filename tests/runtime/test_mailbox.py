"""The bounded queue in front of an actor."""

import asyncio

import pytest
from runtime_world import Ping, mailbox

from actorlm.runtime.errors import MailboxFull
from actorlm.runtime.mailbox import Envelope, Overflow


async def test_messages_come_in_order_and_in_batches() -> None:
    box = mailbox()
    for number in range(5):
        assert box.put("a", Ping(number))
    assert (box.depth, box.high_water) == (5, 5)
    assert await box.drain(3) == [Envelope("a", Ping(number)) for number in range(3)]
    assert await box.drain() == [Envelope("a", Ping(3)), Envelope("a", Ping(4))]
    assert (box.depth, box.high_water, box.accepted) == (0, 5, 5)


async def test_drain_waits_and_is_woken_by_every_put() -> None:
    box = mailbox()
    for number in range(50):
        waiting = asyncio.ensure_future(box.drain())
        await asyncio.sleep(0)
        assert not waiting.done()
        box.put("a", Ping(number))
        assert await waiting == [("a", Ping(number))]


async def test_a_cancelled_drain_loses_nothing() -> None:
    box = mailbox()
    waiting = asyncio.ensure_future(box.drain())
    await asyncio.sleep(0)
    box.put("a", Ping(1))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await box.drain() == [("a", Ping(1))]


@pytest.mark.parametrize("overflow", [Overflow.PAUSE, Overflow.REFUSE])
async def test_a_full_mailbox_refuses(overflow: Overflow) -> None:
    box = mailbox("box", capacity=1, overflow=overflow)
    box.put("a", Ping(1))
    with pytest.raises(MailboxFull, match="box holds 1 messages; Ping"):
        box.put("a", Ping(2))
    assert (box.accepted, box.refused, box.dropped) == (1, 1, 0)
    assert box.pauses_ports == (overflow is Overflow.PAUSE)


async def test_the_newest_is_dropped_and_counted() -> None:
    box = mailbox(capacity=1, overflow=Overflow.DROP_NEWEST)
    assert box.put("a", Ping(1))
    assert not box.put("a", Ping(2))
    assert await box.drain() == [("a", Ping(1))]
    assert (box.accepted, box.refused, box.dropped) == (1, 0, 1)
    assert not box.pauses_ports


async def test_room_is_announced_only_after_it_was_full() -> None:
    box = mailbox(capacity=2)
    announced = []
    box.on_room(lambda: announced.append(box.depth))
    box.put("a", Ping(1))
    await box.drain()
    assert announced == []
    box.put("a", Ping(1))
    box.put("a", Ping(2))
    await box.drain(1)
    assert announced == [1]
    await box.drain(1)
    assert announced == [1]
