"""Both executors run the same worker to the same answers, and fail with the first cause."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from actorlm.actors.membership import Membership
from actorlm.actors.worker import WorkerActor
from actorlm.errors import ExecutorFailed
from actorlm.execution.worker import Worker
from actorlm.executors.broadcast import BroadcastExecutor
from actorlm.executors.inline import InlineExecutor
from actorlm.messages.actor import Control
from actorlm.messages.catalog import INBOXES, protocol
from actorlm.messages.executor import StepDone
from actorlm.messages.worker import RunStep
from actorlm.metrics import Metrics
from actorlm.runtime.broadcast import Publisher, Subscriber, draw_topic
from actorlm.runtime.identity import this_process
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.pulse import Pulse
from actorlm.runtime.zeromq import ZeroMQNetwork
from actorlm.wire import int32

EPOCH = 7


class EchoRunner:
    """Answers each step with its number; fails at step 13."""

    def load(self, progress):
        progress(1, 2)
        progress(2, 2)

    def warm_up(self):
        pass

    def execute(self, step):
        if step.step == 13:
            raise ValueError("thirteen")
        return StepDone(step.step, int32([step.step]), 0)


def _step(number):
    empty = int32([])
    return RunStep(number, empty, (), empty, empty, empty, empty, empty, empty)


@asynccontextmanager
async def _inline(_):
    executor = InlineExecutor(lambda: Worker(EchoRunner()))
    yield executor
    await executor.stop()


@asynccontextmanager
async def _broadcast(directory):
    """The engine's end and the worker's end in one loop, over real sockets."""
    network, topic = ZeroMQNetwork(protocol()), draw_topic()
    address = {name: f"ipc://{directory}/{name}" for name in ("workers", "steps", "results", "supervisor")}
    results, control = Mailbox("results", 1024, Overflow.PAUSE), Mailbox("worker", 1024, Overflow.PAUSE)
    supervisor = Mailbox("supervisor", 1024, Overflow.PAUSE)
    publisher = Publisher(address["steps"], epoch=EPOCH, topic=topic, inbox=INBOXES["worker"])
    engine, rank = this_process("engine", "engine-0"), this_process("worker", "worker-0-0")
    network.serve(
        address["workers"], identity=engine, mailbox=results, inbox=INBOXES["executor"],
        admits=("worker",), one_way={"results": address["results"]}, topic=topic,
    )  # fmt: skip
    network.serve(address["supervisor"], identity=this_process("supervisor", "supervisor"), mailbox=supervisor,
                  inbox=INBOXES["supervisor"], admits=("worker",))  # fmt: skip

    def link(peer, socket_name):
        return network.connect(address[socket_name], peer=peer, identity=rank, mailbox=control, inbox=Control)

    worker = WorkerActor(
        "worker-0-0", control, rank=0, build=lambda: Worker(EchoRunner()), engine=link("engine-0", "workers"),
        subscribe=lambda up: Subscriber(address["steps"], epoch=EPOCH, topic=up.welcome.topic, inbox=INBOXES["worker"]),
        membership=Membership(link("supervisor", "supervisor"), Metrics(), network, Pulse(10.0)),
    )  # fmt: skip
    running = asyncio.get_running_loop().create_task(worker.run())
    executor = BroadcastExecutor(results, publisher, name="engine-0", workers=["worker-0-0"], epoch=EPOCH)
    yield executor
    await executor.stop()
    worker.stop()
    await asyncio.gather(running, return_exceptions=True)
    await network.close()
    publisher.close()


@pytest.fixture(params=[_inline, _broadcast], ids=["inline", "broadcast"])
async def executor(request, tmp_path):
    async with request.param(tmp_path) as executor:
        phases = []
        await asyncio.wait_for(executor.start(lambda *phase: phases.append(phase)), 20)
        assert phases
        yield executor


async def test_steps_are_answered_in_order(executor):
    for number in range(5):
        done = await asyncio.wait_for(executor.execute_model(_step(number)), 5)
        assert (done.step, done.tokens) == (number, int32([number]))


async def test_several_steps_may_wait_at_the_worker(executor):
    running = [executor.execute_model(_step(number)) for number in range(4)]
    assert [done.step for done in await asyncio.wait_for(asyncio.gather(*running), 5)] == [0, 1, 2, 3]


async def test_a_step_behind_one_that_fails_is_not_run(executor):
    told = []
    executor.on_failure(told.append)
    running = [executor.execute_model(_step(number)) for number in (12, 13, 14)]
    before, failed, behind = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 5)
    assert before.step == 12
    assert isinstance(failed, ExecutorFailed)
    assert str(failed) == str(behind)
    assert [str(failure) for failure in told] == [str(failed)]


async def test_a_listed_method_can_be_called(executor):
    await executor.execute_model(_step(0))
    [described] = await executor.collective_rpc("describe", timeout_s=5)
    assert described == {"last_step": 0, "doing": "idle"}


async def test_other_methods_cannot_be_called(executor):
    with pytest.raises((ExecutorFailed, KeyError), match="__class__"):
        await executor.collective_rpc("__class__", timeout_s=5)


async def test_a_failure_says_where_and_every_later_call_raises_it(executor):
    told = []
    executor.on_failure(told.append)
    assert not executor.is_failed
    with pytest.raises(ExecutorFailed, match="ValueError: thirteen") as first:
        await asyncio.wait_for(executor.execute_model(_step(13)), 5)
    assert f"rank 0 on {socket.gethostname()}" in str(first.value)
    assert executor.is_failed
    with pytest.raises(ExecutorFailed, match="thirteen"):
        executor.execute_model(_step(14))
    with pytest.raises(ExecutorFailed, match="thirteen"):
        await executor.collective_rpc("describe", timeout_s=5)
    assert [str(failure) for failure in told] == [str(first.value)]
    late = []
    executor.on_failure(late.append)
    assert late == told
