"""Actors: one message at a time, a hook per batch, and tasks that live and die with the actor."""

import asyncio

import pytest
from runtime_world import Ping, mailbox

from actorlm.errors import ProtocolError
from actorlm.runtime.actor import Actor


class Recorder(Actor[Ping]):
    """Writes down what happens to it; number 13 is bad luck, number 66 forbidden, number 99 the end."""

    def __init__(self) -> None:
        super().__init__("recorder", mailbox())
        self.seen: list[int | str] = []

    def receive(self, sender: str, message: Ping) -> None:
        assert sender == "test"
        if message.number == 13:
            raise RuntimeError("bad luck")
        if message.number == 66:
            raise ProtocolError("not this")
        self.seen.append(message.number)
        if message.number == 99:
            self.stop()

    def after_batch(self) -> None:
        self.seen.append("batch")


def tell(actor: Recorder, *numbers: int) -> None:
    for number in numbers:
        actor.mailbox.put("test", Ping(number))


async def run(actor: Recorder) -> None:
    async with asyncio.timeout(5):
        await actor.run()


async def test_messages_are_received_in_batches_until_stop() -> None:
    actor = Recorder()
    tell(actor, 1, 2, 99, 3)
    await run(actor)
    assert actor.seen == [1, 2, 99, "batch"]
    assert actor.processed == 3


async def test_stop_from_outside_ends_an_idle_actor() -> None:
    actor = Recorder()
    asyncio.get_running_loop().call_later(0.01, actor.stop)
    await run(actor)


async def test_stop_before_run_ends_it_at_once() -> None:
    actor = Recorder()
    actor.stop()
    await run(actor)


async def test_an_exception_in_receive_ends_run_with_it() -> None:
    actor = Recorder()
    tell(actor, 1, 13, 2)
    with pytest.raises(RuntimeError, match="bad luck"):
        await run(actor)
    assert actor.seen == [1]


async def test_e04_a_message_that_must_not_be_sent_is_dropped_and_counted() -> None:
    actor = Recorder()
    tell(actor, 1, 66, 66, 99)
    await run(actor)
    assert actor.seen == [1, 99, "batch"]
    assert actor.processed == 4
    assert actor.tally.dropped == {"ProtocolError": 2}


async def test_the_first_failure_of_a_task_ends_run_and_cancels_the_others() -> None:
    actor = Recorder()
    cancelled = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append("waiting")
            raise

    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise ValueError("a task's")

    actor.spawn(wait())
    actor.spawn(fail())
    with pytest.raises(ValueError, match="a task's"):
        await run(actor)
    assert cancelled == ["waiting"]


async def test_tasks_end_with_the_actor_and_a_finished_one_does_not_end_it() -> None:
    actor = Recorder()

    async def quick() -> int:
        return 7

    endless = actor.spawn(asyncio.sleep(60))
    assert await actor.spawn(quick()) == 7
    tell(actor, 1, 99)
    await run(actor)
    assert endless.cancelled()


async def test_cancelling_run_cancels_its_tasks() -> None:
    actor = Recorder()
    endless = actor.spawn(asyncio.sleep(60))
    running = asyncio.ensure_future(actor.run())
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert endless.cancelled()


async def test_a_busy_actor_leaves_the_loop_its_turns() -> None:
    actor = Recorder()
    tell(actor, *[1] * 900)
    batches_seen_by_the_loop = []

    async def watch() -> None:
        while True:
            batches_seen_by_the_loop.append(actor.processed)
            await asyncio.sleep(0)

    actor.spawn(watch())
    asyncio.get_running_loop().call_later(0.05, actor.stop)
    await run(actor)
    assert {256, 512, 768, 900} <= set(batches_seen_by_the_loop)
