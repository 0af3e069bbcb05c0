"""A replica whose workers are actors of this process: real sockets, threads that compute, no child processes."""

import asyncio
import threading
from contextlib import asynccontextmanager

from actorlm.actors.membership import Membership
from actorlm.actors.worker import WorkerActor
from actorlm.execution.worker import Worker
from actorlm.executors.inline import InlineExecutor
from actorlm.executors.ranks import Ranks
from actorlm.executors.sockets import follow, lead, subscriber
from actorlm.messages.catalog import INBOXES, protocol
from actorlm.messages.executor import StepDone
from actorlm.messages.worker import RunStep
from actorlm.metrics import Metrics
from actorlm.runtime.identity import this_process
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.pulse import Pulse
from actorlm.runtime.zeromq import ZeroMQNetwork
from actorlm.topology import ReplicaSockets
from actorlm.wire import int32

EPOCH = 7
TICK_S = 1.0
STEP_TIMEOUT_S = 20.0


def step(number, size=0):
    """A step that asks for nothing, of any size."""
    empty, filled = int32([]), int32([0] * size)
    return RunStep(number, empty, (), empty, empty, filled, filled, filled, empty)


class EchoRunner:
    """Answers each step with its number, if it `answers`. `acts` are done in steps of certain numbers."""

    bytes_read = 7

    def __init__(self, answers=True, acts=None):
        self._answers = answers
        self._acts = acts or {}

    def load(self, progress):
        progress(1, 2)
        progress(2, 2)

    def warm_up(self):
        pass

    def execute(self, step):
        self._acts.get(step.step, lambda: None)()
        return StepDone(step.step, int32([step.step]), 0) if self._answers else None


def raising(error):
    def act():
        raise error

    return act


def echo_workers(world_size, output_rank=0, acts=None):
    """Workers by rank. `acts` are by rank and number of a step."""
    return [
        Worker(
            EchoRunner(rank == output_rank, {number: act for (of, number), act in (acts or {}).items() if of == rank})
        )
        for rank in range(world_size)
    ]


def ranks_of(names):
    return Ranks(names, step_timeout_s=STEP_TIMEOUT_S, tick_s=TICK_S)


@asynccontextmanager
async def inline(_, workers):
    """An executor with its only worker, started."""
    [worker] = workers
    executor = InlineExecutor(lambda: worker, ranks_of(["engine-0"]))
    await executor.start(lambda *phase: None)
    yield executor
    await executor.stop()


class Replica:
    """The engine's end and the workers' ends in one loop. `heard` are the messages that came back, with their ranks."""

    def __init__(self, directory, workers):
        self.addresses = ReplicaSockets("engine-0", *(f"ipc://{directory}/{name}" for name in ("w", "s", "r")))
        self.network = ZeroMQNetwork(protocol())
        self._supervisor = f"ipc://{directory}/supervisor"
        supervisor = Mailbox("supervisor", 1024, Overflow.PAUSE)
        self.network.serve(self._supervisor, identity=this_process("supervisor", "supervisor"), mailbox=supervisor,
                           inbox=INBOXES["supervisor"], admits=("worker",))  # fmt: skip
        names = [f"worker-0-{rank}" for rank in range(len(workers))]
        engine = this_process("engine", "engine-0")
        self.executor, self.publisher = lead(self.network, self.addresses, engine, ranks_of(names), EPOCH)
        self.heard = []
        self._listen(self.executor._collector)
        self.actors = [self._worker(rank, name, workers[rank]) for rank, name in enumerate(names)]
        self._running = [asyncio.get_running_loop().create_task(actor.run()) for actor in self.actors]

    def _listen(self, collector):
        receive = collector.receive

        def listening(sender, message):
            self.heard.append((sender, message))
            receive(sender, message)

        collector.receive = listening

    def _worker(self, rank, name, worker):
        identity, mailbox = this_process("worker", name), Mailbox(name, 1024, Overflow.PAUSE)
        supervisor = self.network.connect(
            self._supervisor, peer="supervisor", identity=identity, mailbox=mailbox, inbox=INBOXES["actor"]
        )
        return WorkerActor(
            name, mailbox, rank=rank, build=lambda: worker,
            engine=follow(self.network, self.addresses, identity, mailbox),
            subscribe=lambda link: subscriber(self.addresses, link, EPOCH),
            membership=Membership(supervisor, Metrics(), self.network, Pulse(10.0)),
        )  # fmt: skip

    async def close(self):
        await self.executor.stop()
        for actor in self.actors:
            actor.stop()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.network.close()
        self.publisher.close()


@asynccontextmanager
async def replica(directory, workers):
    """Such a replica, started."""
    made = Replica(directory, workers)
    try:
        await asyncio.wait_for(made.executor.start(lambda *phase: None), 20)
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def broadcast(directory, workers):
    """Its executor alone."""
    async with replica(directory, workers) as made:
        yield made.executor


class Gate:
    """An act that waits until it is opened."""

    def __init__(self):
        self._opened = threading.Event()
        self.open = self._opened.set

    def __call__(self):
        assert self._opened.wait(20)
