"""The executor of world size 1: the Worker on a thread of the EngineCore's process, nothing serialised."""

import asyncio
import os
import socket
from asyncio import Future
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from actorlm.errors import ExecutorFailed
from actorlm.execution.worker import Worker
from actorlm.executors.base import Executor, Progress
from actorlm.messages.executor import StepDone
from actorlm.messages.worker import RunStep


class InlineExecutor(Executor):
    """Runs `build()`'s worker on one thread; torch is imported there, while the event loop goes on."""

    def __init__(self, build: Callable[[], Worker]) -> None:
        super().__init__()
        self._build = build
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worker")
        self._worker: Worker | None = None

    async def start(self, progress: Progress) -> None:
        """Builds the worker, loads its weights and runs a step."""
        loop = asyncio.get_running_loop()

        def report(done: int, total: int) -> None:
            loop.call_soon_threadsafe(progress, "load weights", done, total)

        def load() -> Worker:
            worker = self._build()
            worker.load(report)
            return worker

        progress("import", 0, 0)
        self._worker = await loop.run_in_executor(self._thread, load)

    def execute_model(self, step: RunStep) -> "Future[StepDone]":
        """Runs one step on the thread."""
        self._check()
        assert self._worker is not None, "start() comes first"
        return asyncio.get_running_loop().run_in_executor(self._thread, self._run, self._worker.execute, (step,))

    async def collective_rpc(
        self, method: str, args: tuple[Any, ...] = (), *, reply_rank: int | None = None, timeout_s: float
    ) -> list[Any]:
        """Calls the method between two steps."""
        self._check()
        assert self._worker is not None, "start() comes first"
        assert reply_rank in (None, 0), "there is one rank"
        call = asyncio.get_running_loop().run_in_executor(self._thread, self._run, self._worker.callable[method], args)
        return [await asyncio.wait_for(call, timeout_s)]

    async def stop(self) -> None:
        """Lets the thread end after what it is doing now."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self._check()  # a step that was queued behind the failure
        try:
            return function(*args)
        except Exception as error:
            where = f"rank 0 on {socket.gethostname()} (pid {os.getpid()})"
            raise self._fail(ExecutorFailed(f"{where}: {type(error).__name__}: {error}")) from error
