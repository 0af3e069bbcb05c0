"""The executor of world size 1: the Worker on a thread of the EngineCore's process, nothing serialised."""

import asyncio
import os
import socket
from asyncio import Future
from collections.abc import Callable
from concurrent.futures import Future as Running
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from actorlm.errors import ExecutorFailed, RemoteError
from actorlm.execution.faults import fault_of, remote_error
from actorlm.execution.worker import Worker
from actorlm.executors.base import Executor, Progress
from actorlm.executors.ranks import Ranks
from actorlm.messages.executor import StepDone
from actorlm.messages.worker import RunStep


class InlineExecutor(Executor):
    """Runs `build()`'s worker on one thread; torch is imported there, while the event loop goes on."""

    def __init__(self, build: Callable[[], Worker], ranks: Ranks) -> None:
        super().__init__(ranks)
        self._build = build
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worker")
        self._worker: Worker | None = None
        self._answers: set[Future[Any]] = set()
        self._broken: ExecutorFailed | None = None
        """Of the thread: steps that were queued behind a failure do not run."""
        self.ranks.introduced(0, socket.gethostname(), os.getpid())
        self.on_failure(self._fail_answers)

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
        self.ranks.begun(step.step)
        return self._submit(self._step, step)

    def collective_rpc(
        self, method: str, args: tuple[Any, ...] = (), *, reply_rank: int | None = None, timeout_s: float
    ) -> "Future[Any]":
        """Calls the method between two steps."""
        self._check()
        assert reply_rank in (None, 0), "there is one rank"
        answer = self._submit(self._call, method, args, reply_rank is None)
        self._limit(answer, timeout_s, method, lambda: [0])
        return answer

    def tick(self) -> None:
        """Looks at the worker first."""
        if self._worker is not None:
            self.ranks.heard(0, self._worker.last_step, self._worker.doing)
        super().tick()

    async def stop(self) -> None:
        """Lets the thread end after what it is doing now."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Runs on the thread. The answer may end before that, by a failure or a timeout."""
        loop = asyncio.get_running_loop()
        answer: Future[Any] = loop.create_future()
        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)

        def ended(running: "Running[Any]") -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._settle, answer, running)

        self._thread.submit(function, *args).add_done_callback(ended)
        return answer

    def _settle(self, answer: "Future[Any]", running: "Running[Any]") -> None:
        if running.cancelled():
            answer.cancel()
            return
        error = running.exception()
        if isinstance(error, ExecutorFailed):
            self._fail(error)
        if answer.done():
            return
        if error is None:
            answer.set_result(running.result())
        else:
            answer.set_exception(error)

    def _fail_answers(self, failure: ExecutorFailed) -> None:
        for answer in list(self._answers):
            if not answer.done():
                answer.set_exception(failure)
                answer.exception()  # nobody need look: whoever wants to know has been told

    def _step(self, step: RunStep) -> StepDone:
        if self._broken is not None:
            raise self._broken
        assert self._worker is not None, "start() comes first"
        try:
            done = self._worker.execute(step)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the executor's failure
            remote = self._remote(self._worker, error)
            self._broken = ExecutorFailed(remote.message)
            raise self._broken from remote
        assert done is not None, "the only rank answers"
        return done

    def _call(self, method: str, args: tuple[Any, ...], as_list: bool) -> Any:
        assert self._worker is not None, "start() comes first"
        try:
            result = self._worker.call(method, args)
        except Exception as error:
            raise self._remote(self._worker, error) from error
        return [result] if as_list else result

    def _remote(self, worker: Worker, error: Exception) -> RemoteError:
        return remote_error(fault_of(error, rank=0, doing=worker.doing))
