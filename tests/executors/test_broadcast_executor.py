"""What crosses the sockets of a replica, and which of several failures is the cause."""

import asyncio
import time

import pytest
import zmq
from replica import Gate, echo_workers, raising, replica, step
from structlog.testing import capture_logs

from actorlm.errors import ExecutorFailed, PeerMissing, RemoteError
from actorlm.execution.faults import fault_of
from actorlm.messages.executor import CallReturned, StepDone, StepFailed, WorkerProgress

STEPS = 20


class Listener:
    """Counts the multipart messages of a broadcast, as one more subscriber would get them."""

    def __init__(self, address, topic):
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, topic)
        self._socket.connect(address)

    def messages(self, timeout_ms=300):
        found = []
        while self._socket.poll(timeout_ms):
            found.append(self._socket.recv_multipart())
        return found

    def close(self):
        self._socket.close(0)
        self._context.term()


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
async def test_one_encoding_and_one_answer_a_step(tmp_path, world_size):
    """Whatever the number of ranks. The output rank is the last but one, as in two stages of two."""
    output_rank = max(0, world_size - 2)
    async with replica(tmp_path, echo_workers(world_size, output_rank)) as made:
        listener = Listener(made.addresses.steps, made.publisher.topic)
        encoded = []
        encode = made.publisher._codec.encode
        made.publisher._codec.encode = lambda message: encoded.append(message) or encode(message)
        while not listener.messages(50):  # until its subscription has come through
            made.executor.collective_rpc("describe", timeout_s=5)
        made.heard.clear()
        encoded.clear()
        for number in range(STEPS):
            await asyncio.wait_for(made.executor.execute_model(step(number)), 5)
        described = await asyncio.wait_for(made.executor.collective_rpc("describe", timeout_s=5), 5)
        assert [one["last_step"] for one in described] == [STEPS - 1] * world_size, "every rank runs every step"
        assert len(encoded) == STEPS + 1
        heard = [(sender, message) for sender, message in made.heard if not isinstance(message, WorkerProgress)]
        answers = [sender for sender, message in heard if isinstance(message, StepDone)]
        assert answers == [f"worker-0-{output_rank}"] * STEPS
        assert {type(message) for _, message in heard} <= {StepDone, CallReturned}
        listened = listener.messages()
        listener.close()
        assert len(listened) == STEPS + 1
        assert {len(frames) for frames in listened} == {3}
        assert made.publisher.tally.sent >= STEPS + 1


async def until(condition):
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0.0002)
    raise AssertionError(condition)


async def failure_of(executor, seconds=5):
    failed = asyncio.get_running_loop().create_future()
    executor.on_failure(lambda failure: failed.done() or failed.set_result(failure))
    return await asyncio.wait_for(failed, seconds)


async def test_a_rank_that_does_not_answer_steps_reports_its_failure(tmp_path):
    acts = {(1, 5): raising(ValueError("five"))}
    async with replica(tmp_path, echo_workers(2, acts=acts)) as made:
        for number in range(6):
            made.executor.execute_model(step(number))
        assert "rank 1 on" in str(await failure_of(made.executor))
        with pytest.raises(ExecutorFailed, match="step 5: ValueError: five"):
            made.executor.execute_model(step(6))


async def test_the_first_failure_stays_the_cause(tmp_path):
    def later():
        time.sleep(0.2)
        raise KeyError("later")

    acts = {(1, 5): raising(ValueError("first")), (0, 5): later}
    async with replica(tmp_path, echo_workers(2, acts=acts)) as made:
        running = made.executor.execute_model(step(5))
        with pytest.raises(ExecutorFailed, match="ValueError: first"):
            await asyncio.wait_for(running, 5)
        await until(lambda: sum(isinstance(message, StepFailed) for _, message in made.heard) == 2)
        with pytest.raises(ExecutorFailed, match="ValueError: first"):
            made.executor.execute_model(step(6))


async def test_who_misses_a_peer_is_not_the_cause_even_if_heard_first(tmp_path):
    """A rank's connections break before it has said why."""

    def dies():
        time.sleep(0.2)
        raise ValueError("the cause")

    acts = {(0, 5): raising(PeerMissing("connection closed by peer")), (1, 5): dies}
    async with replica(tmp_path, echo_workers(2, acts=acts)) as made:
        made.executor.execute_model(step(5))
        assert "rank 1" in str(await failure_of(made.executor))
        assert [message.follows for _, message in made.heard if isinstance(message, StepFailed)] == [True, False]


async def test_a_missing_peer_that_nobody_explains_is_a_failure_too(tmp_path):
    acts = {(0, 5): raising(PeerMissing("connection closed by peer"))}
    async with replica(tmp_path, echo_workers(2, acts=acts)) as made:
        made.executor.execute_model(step(5))
        assert "PeerMissing: connection closed by peer" in str(await failure_of(made.executor))


async def test_a_rank_that_missed_a_message_ends_the_epoch(tmp_path):
    async with replica(tmp_path, echo_workers(2)) as made:
        await asyncio.wait_for(made.executor.execute_model(step(0)), 5)
        made.publisher.sequence += 1
        made.executor.execute_model(step(1))
        assert "idle: SequenceGap: messages of" in str(await failure_of(made.executor))


async def test_a_rank_that_does_not_read_is_named(tmp_path):
    gate = Gate()
    async with replica(tmp_path, echo_workers(2, acts={(1, 0): gate})) as made:
        with pytest.raises(ExecutorFailed, match=r"does not read: .*; rank 1 on .*; rank 0 on"):
            await asyncio.wait_for(send_much(made), 20)
        gate.open()


async def send_much(made):
    """No faster than rank 0 reads."""
    for number in range(2000):
        made.executor.execute_model(step(number, size=5000))
        await until(lambda number=number: made.executor.ranks.all[0].last_step == number)


async def test_a_failing_call_of_a_rank_that_was_not_asked_is_not_lost(tmp_path):
    workers, gate = echo_workers(2), Gate()

    def fails():
        gate()
        raise ValueError("hidden")

    workers[1].callable["describe"] = fails
    async with replica(tmp_path, workers) as made:
        answer = made.executor.collective_rpc("describe", reply_rank=0, timeout_s=5)
        assert (await asyncio.wait_for(answer, 5))["last_step"] == -1
        with capture_logs() as logs:
            gate.open()
            await until(lambda: logs)
        assert "call of describe: ValueError: hidden" in logs[0]["error"]


async def test_a_call_that_fails_before_the_answer_fails(tmp_path):
    workers, gate = echo_workers(2), Gate()
    describe = workers[0].describe
    workers[0].callable["describe"] = lambda: gate() or describe()
    workers[1].callable["describe"] = raising(ValueError("hidden"))
    async with replica(tmp_path, workers) as made:
        answer = made.executor.collective_rpc("describe", reply_rank=0, timeout_s=5)
        with pytest.raises(RemoteError, match="rank 1 on .*call of describe: ValueError: hidden") as raised:
            await asyncio.wait_for(answer, 5)
        assert "raise error\nValueError: hidden" in raised.value.traceback
        gate.open()
        assert not made.executor.is_failed


async def test_nobody_speaks_for_another_rank(tmp_path):
    async with replica(tmp_path, echo_workers(2)) as made:
        fault = fault_of(ValueError("made up"), rank=1, doing="")
        made.actors[0]._answer(StepFailed(fault))
        await asyncio.wait_for(made.executor.execute_model(step(0)), 5)
        assert not made.executor.is_failed
        assert sum(made.executor.tally.dropped.values()) == 1
