"""The executor of several devices, and of one by flag: a process per worker.

A step is encoded once and broadcast to all ranks; the output rank alone answers it. Every rank reports faults.
Workers introduce themselves over ROUTER/DEALER and are told the secret topic of the broadcast there.
"""

import asyncio
from asyncio import Future
from typing import Any

import msgspec

from actorlm.errors import ExecutorFailed
from actorlm.execution.faults import remote_error
from actorlm.executors.base import Executor, Progress
from actorlm.executors.collector import Call, ResultCollector
from actorlm.executors.ranks import Ranks
from actorlm.messages.executor import Inbox, StepDone, StepFailed
from actorlm.messages.worker import CallMethod, RunStep, StopWorker, Sync
from actorlm.runtime.broadcast import Publisher
from actorlm.runtime.errors import BroadcastFull
from actorlm.runtime.events import LinkEvent
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.tally import Tally

SYNC_S = 0.05
HEARSAY_S = 0.5
"""Time that the cause gets to come, if a rank has only missed another one."""


class BroadcastExecutor(Executor):
    """Runs steps on worker processes, whoever has started them. `epoch` is new with each start of the replica."""

    def __init__(
        self, mailbox: Mailbox[Inbox | LinkEvent], publisher: Publisher[Any], ranks: Ranks, *, name: str, epoch: int
    ) -> None:
        super().__init__(ranks)
        self._publisher = publisher
        self._epoch = epoch
        self._calls = 0
        self._collector = ResultCollector(f"{name}-results", mailbox, ranks, epoch, self._step_failed)
        self._collecting: asyncio.Task[None] | None = None
        self.on_failure(self._collector.fail)

    @property
    def tally(self) -> Tally:
        """What was dropped of the workers' messages."""
        return self._collector.tally

    async def start(self, progress: Progress) -> None:
        """Repeats Sync until every rank has answered that it is loaded and hears this broadcast."""
        progress("wait for workers", 0, 0)
        self._collecting = asyncio.get_running_loop().create_task(self._collector.run())
        while len(self._collector.ready) < len(self.ranks.all):
            self._check()
            self._publish(Sync(self._epoch))
            await asyncio.sleep(SYNC_S)

    def execute_model(self, step: RunStep) -> "Future[StepDone]":
        """Broadcasts one step."""
        self._check()
        self._publish(step)
        self.ranks.begun(step.step)
        future: Future[StepDone] = asyncio.get_running_loop().create_future()
        self._collector.steps[step.step] = future
        return future

    def collective_rpc(
        self, method: str, args: tuple[Any, ...] = (), *, reply_rank: int | None = None, timeout_s: float
    ) -> "Future[Any]":
        """Broadcasts one call."""
        self._check()
        self._calls += 1
        number = self._calls
        self._publish(CallMethod(number, method, msgspec.msgpack.encode(args), reply_rank))
        call = Call(asyncio.get_running_loop().create_future(), len(self.ranks.all), reply_rank)
        self._collector.calls[number] = call
        self._limit(call.future, timeout_s, method, lambda: call.missing)
        call.future.add_done_callback(lambda _: self._collector.calls.pop(number))
        return call.future

    async def stop(self) -> None:
        """Tells the workers to finish."""
        if not self.is_failed:
            self._publish(StopWorker())
        self._collector.stop()
        if self._collecting is not None:
            await self._collecting

    def _publish(self, message: RunStep | Sync | CallMethod | StopWorker) -> None:
        """Raises ExecutorFailed if a worker has not read for so long that its queue is full."""
        try:
            self._publisher.publish(message)
        except BroadcastFull as error:
            raise self._fail(
                ExecutorFailed(f"{error.message}; {self.ranks.describe(range(len(self.ranks.all)))}")
            ) from error

    def _step_failed(self, message: StepFailed) -> None:
        error = remote_error(message.fault)
        failure = ExecutorFailed(f"{error.message}\n{error.traceback}".rstrip())
        failure.__cause__ = error
        if message.follows:
            asyncio.get_running_loop().call_later(HEARSAY_S, self._fail, failure)
        else:
            self._fail(failure)
