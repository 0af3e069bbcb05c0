"""What an EngineCore calls, whatever runs its steps and wherever."""

import asyncio
from abc import ABC, abstractmethod
from asyncio import Future
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from actorlm.errors import CallTimedOut, ExecutorFailed
from actorlm.executors.ranks import Ranks
from actorlm.messages.executor import StepDone
from actorlm.messages.worker import RunStep

log = structlog.get_logger()

Progress = Callable[[str, int, int], None]
"""Called with the phase of a start, and bytes done and in total where the phase has them."""


class Executor(ABC):
    """Runs steps on the workers of one replica, whose `ranks` it knows.

    After the first failure `is_failed` is true and every call raises `ExecutorFailed` with that first cause.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._failure: ExecutorFailed | None = None
        self._callbacks: list[Callable[[ExecutorFailed], None]] = []

    @abstractmethod
    async def start(self, progress: Progress) -> None:
        """Returns when every rank has loaded its weights and run a step."""

    @abstractmethod
    def execute_model(self, step: RunStep) -> "Future[StepDone]":
        """Runs one step. The future waits for the output rank alone; those of several steps resolve in order."""

    @abstractmethod
    def collective_rpc(
        self, method: str, args: tuple[Any, ...] = (), *, reply_rank: int | None = None, timeout_s: float
    ) -> "Future[Any]":
        """Calls a method that workers list as callable, on every rank, after the steps that run already.

        Gives a list with one result a rank, or `reply_rank`'s alone. Fails with RemoteError if a rank raised something
        before that, with CallTimedOut, or with ExecutorFailed.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Ends what the executor started."""

    def tick(self) -> None:
        """Called at each heartbeat: warns of ranks that take long over a step, and fails when it takes too long."""
        late, is_over = self.ranks.tick()
        if not late or self.is_failed:
            return
        who = self.ranks.describe(late)
        if is_over:
            self._fail(ExecutorFailed(f"a step has not ended in time (--step-timeout-s): {who}"))
        else:
            log.warning("a step takes long", ranks=who)

    @property
    def is_failed(self) -> bool:
        """Whether a worker has failed."""
        return self._failure is not None

    def on_failure(self, callback: Callable[[ExecutorFailed], None]) -> None:
        """Has `callback` called once with the first cause; at once if there is one already."""
        if self._failure is not None:
            callback(self._failure)
        self._callbacks.append(callback)

    def _fail(self, failure: ExecutorFailed) -> ExecutorFailed:
        """Records the first cause and tells; returns the first cause."""
        if self._failure is None:
            self._failure = failure
            for callback in self._callbacks:
                callback(failure)
        return self._failure

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _limit(
        self, answer: "Future[Any]", timeout_s: float, method: str, missing: Callable[[], Iterable[int]]
    ) -> None:
        """Fails `answer` after `timeout_s`, unless it has come; `missing` are the ranks that it waits for."""

        def expire() -> None:
            if not answer.done():
                who = self.ranks.describe(missing())
                answer.set_exception(CallTimedOut(f"no answer to {method} within {timeout_s:g} s: {who}"))

        timer = asyncio.get_running_loop().call_later(timeout_s, expire)
        answer.add_done_callback(lambda _: timer.cancel())
