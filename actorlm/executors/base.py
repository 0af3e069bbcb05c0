"""What an EngineCore calls, whatever runs its steps and wherever."""

from abc import ABC, abstractmethod
from asyncio import Future
from collections.abc import Callable
from typing import Any

from actorlm.errors import ExecutorFailed
from actorlm.messages.executor import StepDone
from actorlm.messages.worker import RunStep

Progress = Callable[[str, int, int], None]
"""Called with the phase of a start, and bytes done and in total where the phase has them."""


class Executor(ABC):
    """Runs steps on the workers of one replica.

    After the first failure `is_failed` is true and every call raises `ExecutorFailed` with that first cause.
    """

    def __init__(self) -> None:
        self._failure: ExecutorFailed | None = None
        self._callbacks: list[Callable[[ExecutorFailed], None]] = []

    @abstractmethod
    async def start(self, progress: Progress) -> None:
        """Returns when every rank has loaded its weights and run a step."""

    @abstractmethod
    def execute_model(self, step: RunStep) -> "Future[StepDone]":
        """Runs one step. The future waits for the output rank alone."""

    @abstractmethod
    async def collective_rpc(
        self, method: str, args: tuple[Any, ...] = (), *, reply_rank: int | None = None, timeout_s: float
    ) -> list[Any]:
        """Calls a method that workers list as callable, on every rank; one result a rank, or `reply_rank`'s alone."""

    @abstractmethod
    async def stop(self) -> None:
        """Ends what the executor started."""

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
