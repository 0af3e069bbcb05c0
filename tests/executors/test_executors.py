"""Both executors run the same workers to the same answers, and fail with the first cause."""

import asyncio
import socket

import pytest
from replica import Gate, broadcast, echo_workers, inline, raising, step
from structlog.testing import capture_logs

from actorlm.errors import CallTimedOut, ExecutorFailed, RemoteError
from actorlm.wire import int32

KINDS = {"inline": (inline, 1), "broadcast": (broadcast, 1), "broadcast of two": (broadcast, 2)}


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture(params=KINDS.values(), ids=KINDS)
async def executor(request, tmp_path, gate):
    """Started. The last rank fails in step 13, and waits for the gate in step 99."""
    make, world_size = request.param
    last = world_size - 1
    acts = {(last, 13): raising(ValueError("thirteen")), (last, 99): gate}
    async with make(tmp_path, echo_workers(world_size, acts=acts)) as executor:
        yield executor
        gate.open()


async def within(future, seconds=5):
    return await asyncio.wait_for(future, seconds)


async def test_steps_are_answered_in_order(executor):
    answers = [executor.execute_model(step(number)) for number in range(5)]
    done = [await within(answer) for answer in answers]
    assert [(one.step, one.tokens) for one in done] == [(number, int32([number])) for number in range(5)]


async def test_a_listed_method_is_called_on_every_rank(executor):
    executor.execute_model(step(0))
    described = await within(executor.collective_rpc("describe", timeout_s=5))
    assert described == [{"last_step": 0, "doing": "idle", "bytes_read": 7}] * len(executor.ranks.all)


async def test_one_rank_alone_replies(executor):
    assert (await within(executor.collective_rpc("describe", reply_rank=0, timeout_s=5)))["last_step"] == -1


async def test_a_call_does_not_hold_up_its_caller(executor, gate):
    executor.execute_model(step(99))
    answer = executor.collective_rpc("describe", timeout_s=5)
    assert not answer.done()
    gate.open()
    assert (await within(answer))[-1]["last_step"] == 99


async def test_other_methods_cannot_be_called(executor):
    with pytest.raises(RemoteError, match="__class__ is no method that may be called; these are: describe"):
        await within(executor.collective_rpc("__class__", timeout_s=5))
    assert not executor.is_failed
    assert (await within(executor.execute_model(step(0)))).step == 0


async def test_a_call_that_is_not_answered_in_time_names_who_does_not(executor, gate):
    executor.execute_model(step(99))
    last = len(executor.ranks.all) - 1
    where = rf"rank {last} on {socket.gethostname()} \(pid \d+\), last answer \d+ s ago, then: "
    with pytest.raises(CallTimedOut, match=rf"no answer to describe within 0.2 s: {where}") as raised:
        await within(executor.collective_rpc("describe", timeout_s=0.2))
    assert raised.value.message.count("rank ") == 1
    assert not executor.is_failed
    gate.open()
    assert len(await within(executor.collective_rpc("describe", timeout_s=5))) == last + 1


async def test_a_failure_says_where_and_every_later_call_raises_it(executor):
    told = []
    executor.on_failure(told.append)
    last = len(executor.ranks.all) - 1
    assert not executor.is_failed
    executor.execute_model(step(13))
    with pytest.raises(ExecutorFailed, match="step 13: ValueError: thirteen") as first:
        await within(executor.collective_rpc("describe", timeout_s=5))
    assert f"rank {last} on {socket.gethostname()} (pid " in str(first.value)
    cause = first.value.__cause__
    assert (cause.rank, cause.error, cause.doing) == (last, "ValueError", "step 13")
    assert "raise error\nValueError: thirteen" in cause.traceback
    assert executor.is_failed
    for call in (lambda: executor.execute_model(step(14)), lambda: executor.collective_rpc("describe", timeout_s=5)):
        with pytest.raises(ExecutorFailed, match="thirteen"):
            call()
    assert [str(failure) for failure in told] == [str(first.value)]
    late = []
    executor.on_failure(late.append)
    assert late == told


@pytest.mark.parametrize("make", [inline, broadcast])
async def test_steps_behind_a_failure_fail_with_it(tmp_path, make):
    async with make(tmp_path, echo_workers(1, acts={(0, 13): raising(ValueError("thirteen"))})) as executor:
        answers = [executor.execute_model(step(number)) for number in (12, 13, 14)]
        assert (await within(answers[0])).step == 12
        for answer in answers[1:]:
            with pytest.raises(ExecutorFailed, match="thirteen"):
                await within(answer)


async def test_a_step_that_takes_long_is_warned_of_and_fails_in_the_end(executor, gate):
    """The fixture's timeout is 20 ticks."""
    running = executor.execute_model(step(99))
    last = len(executor.ranks.all) - 1
    await settle()
    with capture_logs() as logs:
        warned = []
        for _ in range(25):
            if executor.is_failed:
                break
            await settle()
            executor.tick()
            warned.append(len(logs))
    assert [line["log_level"] for line in logs] == ["warning"] * len(logs)
    assert warned[2:8] == [0, 1, 1, 1, 1, 2], "after 4 ticks, and after 8"
    assert f"rank {last} on {socket.gethostname()} (pid " in logs[0]["ranks"]
    assert "rank 0" not in logs[0]["ranks"] or last == 0
    with pytest.raises(ExecutorFailed, match=rf"has not ended in time \(--step-timeout-s\): rank {last} on "):
        executor.execute_model(step(100))
    if last == 0:
        with pytest.raises(ExecutorFailed):
            await within(running)


async def settle():
    """What the workers have said has come."""
    await asyncio.sleep(0.02)


async def test_an_executor_that_rests_is_not_late(executor):
    await within(executor.execute_model(step(0)))
    for rank in range(len(executor.ranks.all)):
        executor.ranks.heard(rank, 0, "idle")
    with capture_logs() as logs:
        for _ in range(100):
            executor.tick()
    assert logs == []
    assert not executor.is_failed
