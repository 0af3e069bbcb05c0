"""Steps in flight, through all actors: the same answers as one at a time, in order, and one end whatever happens."""

import asyncio
import gc
from asyncio import Future
from random import Random

import pytest
from test_memory_logprobs import shape

from actorlm.errors import ExecutorFailed
from actorlm.executors.base import Executor
from actorlm.logprobs import joined
from actorlm.messages.actor import Stop


class HeldExecutor(Executor):
    """Computes a step when the test says so; the oldest first."""

    def __init__(self, build, ranks):
        super().__init__(ranks)
        self.worker = build()
        self.held: list[tuple[object, Future]] = []

    async def start(self, progress):
        self.worker.load(lambda *_: None)

    def execute_model(self, step):
        self._check()
        self.held.append((step, asyncio.get_running_loop().create_future()))
        return self.held[-1][1]

    def go_on(self):
        step, running = self.held.pop(0)
        running.set_result(self.worker.execute(step))

    def break_down(self):
        failure = self._fail(ExecutorFailed("rank 0: ValueError: first"))
        for _, running in self.held:
            running.set_exception(failure)

    def collective_rpc(self, method, args=(), *, reply_rank=None, timeout_s):
        answer = asyncio.get_running_loop().create_future()
        answer.set_result([self.worker.call(method, args)])
        return answer

    async def stop(self):
        pass


async def collect(generation):
    """(text, number of tokens, finish, scores) of one choice."""
    text, tokens, finish, scores = "", 0, None, None
    async for deltas in generation:
        for delta in deltas:
            tokens += delta.tokens
            text += delta.text
            finish = delta.finish or finish
            scores = joined(scores, delta.scores)
    return text, tokens, finish, scores and shape(scores)


SAMPLING = [
    {},
    {"ignore_eos": False, "stop_token_ids": tuple(range(0, 259, 9))},
    {"ignore_eos": False, "stop_token_ids": tuple(range(0, 259, 5)), "min_tokens": 12},
    {"temperature": 0.0, "repetition_penalty": 1.5, "frequency_penalty": 0.5, "presence_penalty": -1.0},
    {"allowed_token_ids": (65, 66, 67), "bad_words": ((65, 65), (67, 66, 65)), "frequency_penalty": 2.0},
    {"logprobs": 2, "prompt_logprobs": 1, "stop_token_ids": tuple(range(0, 259, 11))},
    {"logprob_token_ids": (7,), "max_tokens": 1},
    {"stop": ("A",), "logit_bias": ((65, 3.0),), "max_tokens": 33},
]


def requests():
    return [
        ([number % 5, *range(30)], {"seed": number, "max_tokens": 40} | SAMPLING[number % 8]) for number in range(40)
    ]


@pytest.fixture(scope="module")
def alone():
    return {}


@pytest.mark.parametrize("kv_tokens", [4096, 192])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("ahead", [False, True])
async def test_d02_the_same_answers_with_any_number_of_steps_in_flight(memory_tree, alone, ahead, lanes, kv_tokens):
    scheduler = {"async_scheduling": ahead, "max_num_batched_tokens": 48}
    async with memory_tree(kv_tokens=kv_tokens, lanes=lanes, scheduler=scheduler) as tree:
        answers = await asyncio.gather(*(collect(tree.submit(ids, **sampling)) for ids, sampling in requests()))
        assert (tree.scheduler.num_preemptions > 0) == (kv_tokens == 192)
        await tree.settled()
    assert {finish for _, _, finish, _ in answers} == {"stop", "length"}
    assert answers == alone.setdefault("answers", answers)


@pytest.mark.parametrize("ahead", [False, True])
async def test_aborts_in_any_phase_leave_nothing_behind(memory_tree, ahead):
    random = Random(5)
    async with memory_tree(kv_tokens=256, step_ms=0.5, scheduler={"async_scheduling": ahead}) as tree:
        generations = []
        for number in range(60):
            generations.append(tree.submit([number, *range(random.randrange(60))], max_tokens=60))
            await asyncio.sleep(random.random() / 200)
            generations.pop(random.randrange(len(generations))).abort()
        for generation in generations:
            generation.abort()
        await tree.settled()


async def held_tree(tree, requests=1, **sampling):
    """The executor of a tree in which so many requests have one token each."""
    executor = tree.actors["engine-0"]._executor
    generations = [tree.submit([number, 1, 2], **sampling) for number in range(requests)]
    await tree.until(lambda: tree.scheduler.waiting + tree.scheduler.running == requests and executor.held)
    while not all(request.num_generated for request in tree.scheduler._requests.values()):
        executor.go_on()
        await tree.until(lambda: executor.held)
    return executor, generations


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_one_step_waits_behind_the_one_that_is_computed(memory_tree):
    async with memory_tree(wrap=HeldExecutor) as tree:
        executor, [generation] = await held_tree(tree, max_tokens=5)
        await turns()
        assert [step.step for step, _ in executor.held] == [1, 2]
        for expected in ([2, 3], [3, 4], [4], []):
            executor.go_on()
            await turns()
            assert [step.step for step, _ in executor.held] == expected
        assert (await collect(generation))[1] == 5
        await tree.settled()


async def test_without_async_scheduling_none_waits(memory_tree):
    async with memory_tree(wrap=HeldExecutor, scheduler={"async_scheduling": False}) as tree:
        executor, [generation] = await held_tree(tree, max_tokens=3)
        for expected in ([2], []):
            assert len(executor.held) == 1
            executor.go_on()
            await turns()
            assert [step.step for step, _ in executor.held] == expected
        assert (await collect(generation))[1] == 3


async def test_each_lane_has_a_step_of_its_own_requests(memory_tree):
    async with memory_tree(wrap=HeldExecutor, lanes=2) as tree:
        executor, generations = await held_tree(tree, 4, max_tokens=20)
        while tree.frontend._open:
            await turns()
            slots = [set(step.slots) for step, _ in executor.held]
            assert len(slots) == 2 or not tree.scheduler.has_work or tree.scheduler.running < 3
            executor.go_on()
            await turns(60)
        assert [(await collect(generation))[1] for generation in generations] == [20] * 4
        await tree.settled()


async def test_a_newcomer_is_planned_at_once_where_there_is_room(memory_tree):
    async with memory_tree(wrap=HeldExecutor, lanes=2) as tree:
        executor, _ = await held_tree(tree)
        await turns()
        assert len(executor.held) == 1
        tree.submit([5, 6, 7])
        await tree.until(lambda: len(executor.held) == 2)


async def test_a_failure_with_two_steps_in_flight_is_raised_once(memory_tree, caplog):
    async with memory_tree(wrap=HeldExecutor) as tree:
        executor, _ = await held_tree(tree, max_tokens=50)
        await turns()
        assert len(executor.held) == 2
        executor.break_down()
        with pytest.raises(ExecutorFailed, match="ValueError: first"):
            await tree.tasks["engine-0"][0]
        await tree.kill("engine-0")
        executor.held.clear()
        gc.collect()
        assert "never retrieved" not in caplog.text


async def test_an_engine_stops_with_steps_in_flight(memory_tree):
    async with memory_tree(wrap=HeldExecutor) as tree:
        executor, _ = await held_tree(tree, max_tokens=50)
        await turns()
        assert len(executor.held) == 2
        tree.say("engine-0", Stop())
        assert await asyncio.wait_for(tree.tasks.pop("engine-0")[0], 5) is None


@pytest.mark.parametrize("ahead", [False, True])
async def test_steps_and_tokens_are_counted_when_they_are_done(memory_tree, ahead):
    async with memory_tree(scheduler={"async_scheduling": ahead}) as tree:
        assert (await collect(tree.submit([1, 2, 3], max_tokens=6)))[1] == 6
        core = tree.actors["engine-0"]._core
        assert (core.steps, core.tokens) == (6, 3 + 5)
        await tree.settled()
