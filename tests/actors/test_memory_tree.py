"""The actors together, without processes: what each request comes to, and what a death does to it."""

import asyncio

import pytest

from actorlm.errors import Overloaded, Unavailable
from actorlm.messages.actor import Drain, Retire, Stop, TreeState
from actorlm.messages.frontend import Finish, TextDelta
from actorlm.wire import int32, int64


async def _collect(generation):
    """(texts, tokens, finishes) of all choices, by index."""
    texts, tokens, finishes = {}, {}, {}
    async for deltas in generation:
        for delta in deltas:
            texts[delta.choice] = texts.get(delta.choice, "") + delta.text
            tokens[delta.choice] = tokens.get(delta.choice, 0) + delta.tokens
            if delta.finish:
                assert delta.choice not in finishes, "one finish for each choice"
                finishes[delta.choice] = delta.finish
    return texts, tokens, finishes


async def test_a_choice_for_each_submission(memory_tree):
    async with memory_tree() as tree:
        _, tokens, finishes = await _collect(tree.submit([1, 2], [3], [4, 5, 6]))
        assert tokens == {0: 8, 1: 8, 2: 8}
        assert finishes == {0: "length", 1: "length", 2: "length"}
        await tree.settled()


async def test_the_same_request_alone_and_among_others(memory_tree):
    async with memory_tree() as tree:
        alone, _, _ = await _collect(tree.submit([9, 9], seed=5))
        together = await asyncio.gather(*(_collect(tree.submit([9, 9], seed=seed)) for seed in range(20)))
        assert together[5][0] == alone
        assert len({texts[0] for texts, _, _ in together}) == 20, "seeds matter"


async def test_b06_a_stop_string_ends_the_choice_everywhere(memory_tree):
    async with memory_tree() as tree:
        bias = ((65, 100.0),)
        texts, tokens, finishes = await _collect(tree.submit([1], stop=("AAA",), logit_bias=bias, max_tokens=50))
        assert (texts, tokens, finishes) == ({0: ""}, {0: 3}, {0: "stop"})
        await tree.settled()


async def test_b32_the_limit_of_open_choices_is_kept_at_admission(memory_tree, monkeypatch):
    """One more is refused when it comes, whole, and takes nothing from those that are open."""
    monkeypatch.setattr("actorlm.actors.frontend.MAX_OPEN", 3)
    async with memory_tree(step_ms=5) as tree:
        first = tree.submit([1], [2])
        for more in ([[3], [4]], [[3]] * 4):
            with pytest.raises(Overloaded, match="2 choices are open and at most 3 may be"):
                tree.submit(*more)
        last = tree.submit([5])
        with pytest.raises(Overloaded, match="3 choices are open"):
            tree.submit([6])
        assert (await _collect(first))[1] == {0: 8, 1: 8}
        assert (await _collect(last))[1] == {0: 8}
        assert (await _collect(tree.submit([7], [8], [9])))[1] == {0: 8, 1: 8, 2: 8}
        await tree.settled()


async def test_b19_abort_reaches_every_actor(memory_tree):
    async with memory_tree(step_ms=5) as tree:
        generation = tree.submit([1], [2], max_tokens=4000)
        await anext(generation)
        generation.abort()
        generation.abort()
        await tree.settled()
        with pytest.raises(StopAsyncIteration):
            while True:
                await anext(generation)


async def test_an_abort_before_the_first_token(memory_tree):
    async with memory_tree(step_ms=5) as tree:
        tree.submit([1], max_tokens=4000).abort()
        await tree.settled()


async def test_an_engines_refusal_is_raised_and_spares_the_other_choices(memory_tree):
    async with memory_tree(step_ms=5, scheduler={"max_waiting": 1, "max_num_seqs": 1}) as tree:
        with pytest.raises(Overloaded, match="max_waiting"):
            await _collect(tree.submit(*([i] for i in range(10)), max_tokens=100))
        await tree.settled()


async def test_a_lost_frontend_leaves_nothing_behind(memory_tree):
    async with memory_tree(step_ms=5) as tree:
        generation = tree.submit([1], [2], max_tokens=4000)
        await anext(generation)
        await tree.kill("frontend-0")
        await tree.until(lambda: not tree.scheduler.has_work)
        await tree.until(
            lambda: not tree.actors["detokenizer-0"]._open and not tree.actors["balancer"]._balance.requests
        )


async def test_late_text_of_an_older_attempt_is_dropped(memory_tree):
    async with memory_tree(step_ms=5) as tree:
        generation = tree.submit([1], max_tokens=20)
        [request] = tree.frontend._open
        tree.frontend._open[request].attempt = 1
        late = TextDelta(
            int64([request]), int32([0]), int32([1]), int32([5]), ("late",), bytes([Finish.STOP]), int32([0])
        )
        tree.frontend.receive("detokenizer-0", late)
        assert request in tree.frontend._open
        tree.frontend._open[request].attempt = 0
        texts, tokens, _ = await _collect(generation)
        assert tokens == {0: 20}
        assert "late" not in texts[0]


async def test_without_a_replica_requests_are_refused_at_once(memory_tree):
    async with memory_tree() as tree:
        await tree.kill("engine-0")
        await tree.until(lambda: tree.frontend.state is TreeState.UNAVAILABLE)
        with pytest.raises(Unavailable):
            tree.submit([1])


async def test_a09_drain_refuses_new_work_and_waits_for_the_old(memory_tree):
    async with memory_tree(step_ms=5) as tree:
        generation = tree.submit([1], max_tokens=20)
        tree.say("frontend-0", Drain(30.0))
        await tree.until(lambda: tree.frontend.state is TreeState.DRAINING)
        with pytest.raises(Unavailable, match="draining"):
            tree.submit([2])
        assert not [m for _, m in tree.told if type(m).__name__ == "Drained"]
        assert (await _collect(generation))[1] == {0: 20}
        await tree.until(lambda: [m for _, m in tree.told if type(m).__name__ == "Drained"])


async def test_a07_stop_ends_requests_with_an_error(memory_tree):
    async with memory_tree(step_ms=5) as tree:
        generation = tree.submit([1], max_tokens=4000)
        await anext(generation)
        tree.say("frontend-0", Stop())
        with pytest.raises(Unavailable, match="shutting down"):
            await _collect(generation)
        await tree.until(lambda: ("frontend-0", "http stopped") in tree.told)


async def test_a_frontend_that_retires_stops_http_first_and_finishes_what_it_has(memory_tree):
    """What comes over its connections until these have ended is taken, and finished too."""
    async with memory_tree(step_ms=5) as tree:
        may_end = asyncio.Event()

        async def stop_http(grace_s, linger_s):
            assert (grace_s, linger_s > 0) == (30.0, True)
            await may_end.wait()

        tree.frontend.serve(stop_http)
        before = tree.submit([1], max_tokens=20)
        tree.say("frontend-0", Retire(30.0))
        await asyncio.sleep(0.05)
        late = tree.submit([2], max_tokens=20)
        assert tree.frontend.state is TreeState.READY
        may_end.set()
        await tree.until(lambda: tree.frontend.state is TreeState.DRAINING)
        await _collect(before)
        await _collect(late)
        await tree.until(lambda: [m for _, m in tree.told if type(m).__name__ == "Drained"])


async def test_d08_accepted_equals_the_sum_over_reasons(memory_tree):
    async with memory_tree(step_ms=1) as tree:
        await _collect(tree.submit([1], [2]))
        generation = tree.submit([3], max_tokens=4000)
        await anext(generation)
        generation.abort()
        doomed = tree.submit([4], max_tokens=4000)
        tree.frontend._fail(doomed, Overloaded("too much"))
        with pytest.raises(Overloaded):
            await _collect(doomed)
        counts = {(name, labels): value for name, labels, value in tree.frontend._membership.metrics.samples()}
        by_reason = {labels[0]: value for (name, labels), value in counts.items() if name == "request_success"}
        assert by_reason == {"length": 2, "abort": 1, "error": 1}
        assert counts["requests_accepted", ()] == 4


async def test_a_reader_that_is_slow_gets_everything_merged(memory_tree):
    async with memory_tree() as tree:
        generation = tree.submit([1], max_tokens=200)
        await tree.until(lambda: not tree.frontend._open)
        [delta] = await anext(generation)
        assert delta.tokens == 200
        assert delta.finish == "length"
        with pytest.raises(StopAsyncIteration):
            await anext(generation)
