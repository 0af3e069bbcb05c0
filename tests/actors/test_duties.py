"""What actors say of their duties: a stuck one shows, a busy one does not."""

import asyncio

from actorlm.messages.detokenizer import Close
from actorlm.messages.supervisor import Duty
from actorlm.wire import int64


def _heartbeat(tree, name):
    actor = tree.actors[name]
    return actor._membership.heartbeat(actor)


def _duty(tree, name, what):
    return next(duty for duty in _heartbeat(tree, name).duties if duty.what == what)


async def test_an_engine_with_requests_and_no_steps_shows(memory_tree, monkeypatch):
    async with memory_tree() as tree:
        engine = tree.actors["engine-0"]
        async for _ in tree.submit([1, 2, 3]):
            pass
        await tree.settled()
        assert _duty(tree, "engine-0", "requests") == Duty("requests", 0, engine._core.steps)
        assert engine._core.steps > 0
        monkeypatch.setattr(engine._core, "next_step", lambda: None)
        tree.submit([1, 2, 3], [4])
        await tree.until(lambda: engine._scheduler.waiting == 2)
        await asyncio.sleep(0.02)
        assert _duty(tree, "engine-0", "requests") == Duty("requests", 2, engine._core.steps)
        assert _duty(tree, "engine-0", "messages").pending == 0, "its mailbox is read"
        assert (_heartbeat(tree, "engine-0").running, _heartbeat(tree, "engine-0").waiting) == (0, 2)


async def test_an_engine_whose_workers_compute_is_the_executors_to_watch(memory_tree):
    async with memory_tree(step_ms=200) as tree:
        engine = tree.actors["engine-0"]
        tree.submit([1, 2, 3])
        await tree.until(lambda: engine._in_flight)
        assert _duty(tree, "engine-0", "requests").pending == 0


async def test_an_engine_that_does_not_take_in_what_came_back_shows(memory_tree, monkeypatch):
    async with memory_tree(step_ms=5) as tree:
        engine = tree.actors["engine-0"]
        monkeypatch.setattr(engine, "_turn", lambda: None)
        tree.submit([1])
        await tree.until(lambda: engine._scheduler.waiting == 1)
        monkeypatch.undo()
        monkeypatch.setattr(engine._core, "take", None)  # nobody may
        engine._start_steps()
        monkeypatch.setattr(engine, "_turn", lambda: None)
        await tree.until(engine._in_flight[0][1].done)
        assert _duty(tree, "engine-0", "requests").pending == 1


async def test_a_mailbox_that_is_not_read_shows(memory_tree):
    async with memory_tree() as tree:
        for name, peer in (("detokenizer-0", "frontend-0"), ("balancer", "frontend-0")):
            actor = tree.actors[name]
            [reading] = [task for task in actor._tasks if "_read_mailbox" in repr(task.get_coro())]
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            before = actor.processed
            for _ in range(2):
                actor.mailbox.put(peer, Close(int64([1])))
                duty = _duty(tree, name, "messages")
                assert duty.pending > 0
                assert duty.done == before


async def test_a_frontend_says_how_many_requests_it_has(memory_tree):
    async with memory_tree(step_ms=50) as tree:
        tree.submit([1], [2], [3])
        assert _heartbeat(tree, "frontend-0").running == 3
