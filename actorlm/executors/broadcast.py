"""The executor of several devices, and of one by flag: a process per worker.

A step is encoded once and broadcast to all ranks; the output rank alone answers it. Every rank reports faults.
Workers introduce themselves over ROUTER/DEALER and are told the address and the secret topic of the broadcast there.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Any, assert_never

import msgspec

from actorlm.errors import ExecutorFailed, ProtocolError
from actorlm.executors.base import Executor, Progress
from actorlm.messages.executor import CallReturned, Inbox, StepDone, StepFailed, WorkerProgress, WorkerReady
from actorlm.messages.worker import CallMethod, RunStep, StopWorker, Sync
from actorlm.runtime.actor import Actor
from actorlm.runtime.broadcast import Publisher
from actorlm.runtime.events import LinkEvent, LinkRefused, LinkUp, PeerJoined
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.tally import Tally

SYNC_S = 0.05


class ResultCollector(Actor[Inbox | LinkEvent]):
    """What the workers of one replica have answered. `workers` are their names, by rank."""

    def __init__(
        self,
        name: str,
        mailbox: Mailbox[Inbox | LinkEvent],
        workers: Sequence[str],
        epoch: int,
        on_failure: Callable[[StepFailed], None],
    ) -> None:
        super().__init__(name, mailbox)
        self._workers = workers
        self._epoch = epoch
        self._on_failure = on_failure
        self.ready: set[int] = set()
        self.progress: dict[int, WorkerProgress] = {}
        self.steps: dict[int, Future[StepDone]] = {}
        self.calls: dict[int, tuple[dict[int, Any], set[int], Future[dict[int, Any]]]] = {}

    def receive(self, sender: str, message: Inbox | LinkEvent) -> None:
        """The collector's table of contents."""
        self._check_sender(sender, message)
        match message:
            case StepDone():
                self._done(message)
            case StepFailed():
                self._on_failure(message)
            case WorkerReady():
                self._ready(message)
            case CallReturned():
                self._returned(message)
            case WorkerProgress():
                self.progress[message.rank] = message
            case PeerJoined() | LinkUp() | LinkRefused():
                pass
            case _:
                assert_never(message)

    def _check_sender(self, sender: str, message: Inbox | LinkEvent) -> None:
        match message:
            case WorkerReady() | StepFailed() | CallReturned() | WorkerProgress():
                expected = self._workers[message.rank : message.rank + 1] if message.rank >= 0 else ()
            case StepDone():
                expected = self._workers
            case _:
                return
        if sender not in expected:
            raise ProtocolError(f"{sender} says {type(message).__name__}, which only one of {self._workers} may say")

    def fail(self, failure: ExecutorFailed) -> None:
        """Nothing more will come."""
        waiting: list[Future[Any]] = [*self.steps.values(), *(future for _, _, future in self.calls.values())]
        for future in waiting:
            if not future.done():
                future.set_exception(failure)

    def _done(self, message: StepDone) -> None:
        future = self.steps.pop(message.step, None)
        if future is not None and not future.done():
            future.set_result(message)

    def _ready(self, message: WorkerReady) -> None:
        if message.epoch == self._epoch:
            self.ready.add(message.rank)

    def _returned(self, message: CallReturned) -> None:
        if message.call not in self.calls:
            return
        results, awaited, future = self.calls[message.call]
        if message.error is not None and not future.done():
            future.set_exception(ExecutorFailed(f"rank {message.rank}: {message.error}"))
        results[message.rank] = msgspec.msgpack.decode(message.result) if message.error is None else None
        awaited.discard(message.rank)
        if not awaited and not future.done():
            future.set_result(results)


class BroadcastExecutor(Executor):
    """Runs steps on the worker processes of these names, by rank, which the supervisor has started."""

    def __init__(
        self,
        mailbox: Mailbox[Inbox | LinkEvent],
        publisher: Publisher[Any],
        *,
        name: str,
        workers: Sequence[str],
        epoch: int,
    ) -> None:
        super().__init__()
        self._publisher = publisher
        self._workers = workers
        self._epoch = epoch
        self._calls = 0
        self._collector = ResultCollector(f"{name}-results", mailbox, workers, epoch, self._step_failed)
        self._collecting: asyncio.Task[None] | None = None

    @property
    def tally(self) -> Tally:
        """What was dropped of the workers' messages."""
        return self._collector.tally

    async def start(self, progress: Progress) -> None:
        """Repeats Sync until every rank has answered that it is loaded and hears this broadcast."""
        progress("wait for workers", 0, 0)
        self._collecting = asyncio.get_running_loop().create_task(self._collector.run())
        while len(self._collector.ready) < len(self._workers):
            self._check()
            self._publisher.publish(Sync(self._epoch))
            await asyncio.sleep(SYNC_S)

    def execute_model(self, step: RunStep) -> "Future[StepDone]":
        """Broadcasts one step."""
        self._check()
        self._publisher.publish(step)
        future: Future[StepDone] = asyncio.get_running_loop().create_future()
        self._collector.steps[step.step] = future
        return future

    async def collective_rpc(
        self, method: str, args: tuple[Any, ...] = (), *, reply_rank: int | None = None, timeout_s: float
    ) -> list[Any]:
        """Broadcasts one call."""
        self._check()
        self._calls += 1
        awaited = {reply_rank} if reply_rank is not None else set(range(len(self._workers)))
        future: Future[dict[int, Any]] = asyncio.get_running_loop().create_future()
        self._collector.calls[self._calls] = ({}, awaited, future)
        try:
            self._publisher.publish(CallMethod(self._calls, method, msgspec.msgpack.encode(args), reply_rank))
            results = await asyncio.wait_for(future, timeout_s)
        finally:
            del self._collector.calls[self._calls]
        return [results[rank] for rank in sorted(results)]

    async def stop(self) -> None:
        """Tells the workers to finish."""
        if not self.is_failed:
            self._publisher.publish(StopWorker())
        self._collector.stop()
        if self._collecting is not None:
            await self._collecting

    def _step_failed(self, message: StepFailed) -> None:
        where = f"rank {message.rank} on {message.host} (pid {message.pid}), step {message.step}"
        failure = ExecutorFailed(f"{where}: {message.error}: {message.message}\n{message.traceback}")
        self._collector.fail(self._fail(failure))
