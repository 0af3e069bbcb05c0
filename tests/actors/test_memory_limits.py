"""Limits of time and of callers, in a whole tree: whoever meets one is told, and leaves nothing behind."""

import asyncio

import pytest

from actorlm.api.callers import Caller
from actorlm.errors import DeadlineExceeded, QueueTimeout, RateLimited

ENDLESS = {"max_tokens": 4000}


async def count(generation):
    """The tokens of all choices."""
    return sum([delta.tokens async for deltas in generation for delta in deltas])


async def test_a_request_that_runs_ends_at_its_deadline_after_what_it_has_got(memory_tree):
    async with memory_tree(step_ms=5) as tree:
        generation = tree.submit([1], [2], timeout_s=0.2, **ENDLESS)
        tokens = 0
        with pytest.raises(DeadlineExceeded, match=r"within 0\.2 s"):
            async for deltas in generation:
                tokens += sum(delta.tokens for delta in deltas)
        assert tokens > 0
        await tree.settled()
        assert not tree.frontend._ledger._entries


async def test_a_request_that_waits_ends_at_its_deadline_and_the_server_s_holds_for_all(memory_tree):
    async with memory_tree(step_ms=5, scheduler={"max_num_seqs": 1}, timeouts={"request_timeout_s": 0.3}) as tree:
        running, waiting = tree.submit([1], **ENDLESS), tree.submit([2], timeout_s=100.0, **ENDLESS)
        await anext(running)
        for generation in (waiting, running):
            with pytest.raises(DeadlineExceeded, match=r"within 0\.3 s"):
                await count(generation)
        await tree.settled()


async def test_a_request_that_ends_in_time_has_no_deadline_left(memory_tree):
    async with memory_tree() as tree:
        generation = tree.submit([1], [2], timeout_s=0.3)
        assert await count(generation) == 16
        left = tree.submit([3], timeout_s=0.3, **ENDLESS)
        left.abort()
        assert not tree.frontend._ledger._entries
        await asyncio.sleep(0.4)
        assert generation._error is None
        await tree.settled()


async def test_who_waits_too_long_in_the_queue_is_told_and_who_runs_is_not(memory_tree):
    async with memory_tree(step_ms=5, scheduler={"max_num_seqs": 1}, timeouts={"queue_timeout_s": 0.2}) as tree:
        running, waiting = tree.submit([1], max_tokens=100), tree.submit([2], max_tokens=5)
        with pytest.raises(QueueTimeout, match=r"waited 0\.2 s"):
            await count(waiting)
        assert await count(running) == 100
        assert await count(tree.submit([3], max_tokens=5)) == 5
        await tree.settled()


async def test_a_step_that_takes_long_does_not_keep_those_who_wait_from_their_time(memory_tree):
    async with memory_tree(step_ms=1500, scheduler={"max_num_seqs": 1}, timeouts={"queue_timeout_s": 0.1}) as tree:
        running = tree.submit([1], max_tokens=1)
        await tree.until(lambda: tree.scheduler.running)
        waiting = tree.submit([2], max_tokens=1)
        async with asyncio.timeout(1.0):
            with pytest.raises(QueueTimeout):
                await count(waiting)
        assert await count(running) == 1


async def test_a_caller_s_limits_hold_for_all_that_it_has_open(memory_tree):
    async with memory_tree(step_ms=5) as tree:
        alice, bob = Caller(name="alice", max_requests=1), Caller(name="bob", tokens_per_minute=20)
        first = tree.submit([1], [2], caller=alice, **ENDLESS)
        with pytest.raises(RateLimited, match="max_requests"):
            tree.submit([3], caller=alice)
        first.abort()
        assert await count(tree.submit([3], caller=alice)) == 8
        shared = [5] * 4
        assert await count(tree.submit(shared, [6], caller=bob)) == 16
        with pytest.raises(RateLimited, match="tokens_per_minute"):
            tree.submit([7], caller=bob)
        assert await count(tree.submit([7])) == 8
        await tree.settled()


async def test_e19_callers_share_what_is_cached_by_their_salts_alone(memory_tree):
    """None can be requested: a salt of a request stands behind the caller's own."""

    async def cached(caller, **fields):
        *_, last = [delta async for deltas in tree.submit(range(20), caller=caller, **fields) for delta in deltas]
        return last.cached_tokens

    anybody, alice, twin, bob = (
        Caller(name=name, cache_salt=salt) for name, salt in (("", ""), ("alice", "a"), ("twin", "a"), ("bob", "b"))
    )
    async with memory_tree() as tree:
        for first in (anybody, alice, bob):
            assert await cached(first) == 0
            assert await cached(first) == 16
        assert await cached(twin) == 16
        assert await cached(twin, cache_salt="b") == 0
        for forged in ("a", "a\0", "\0a", "b\0"):
            assert await cached(anybody, cache_salt=forged) == 0
        await tree.settled()


async def test_callers_share_a_replica(memory_tree):
    """One of a caller who has nothing else waiting passes fifty of another one."""
    async with memory_tree(step_ms=2, scheduler={"max_num_seqs": 1}) as tree:
        heavy = [tree.submit([number], caller=Caller(name="heavy")) for number in range(50)]
        await anext(heavy[0])
        assert await count(tree.submit([99], caller=Caller(name="light"))) == 8
        assert tree.scheduler.waiting > 40
        for generation in heavy:
            generation.abort()
        await tree.settled()
