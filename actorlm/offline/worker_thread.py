"""A worker on a thread of its own: steps are given to it, and their answers asked for later, in the same order."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from actorlm.errors import ExecutorFailed
from actorlm.execution.worker import Worker
from actorlm.messages.executor import StepDone
from actorlm.messages.worker import RunStep

Share = Callable[[RunStep, StepDone | None], StepDone]


class WorkerThread:
    """Runs the worker that `build` makes and loads there. Raises what `build` raises.

    `share` gives an answer that another rank has; without it this worker is the only one.
    """

    def __init__(self, build: Callable[[], Worker], share: Share | None = None) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worker")
        self._share = share or _own
        self._failure: ExecutorFailed | None = None
        try:
            self._worker = self._thread.submit(build).result()
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    def start(self, step: RunStep) -> "Future[StepDone]":
        """Runs the step behind those that were given before. From the first failure on, all raise ExecutorFailed."""
        return self._thread.submit(self._execute, step)

    def close(self) -> None:
        """Ends the thread, after the step that runs."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _execute(self, step: RunStep) -> StepDone:
        if self._failure is not None:
            raise self._failure
        try:
            return self._share(step, self._worker.execute(step))
        except Exception as error:
            self._failure = ExecutorFailed(f"the worker failed: {type(error).__name__}: {error}")
            raise self._failure from error


def _own(_step: RunStep, done: StepDone | None) -> StepDone:
    assert done is not None, "the only rank answers"
    return done
