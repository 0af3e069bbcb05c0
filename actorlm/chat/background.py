"""An event loop on a thread of its own, so that the main thread can wait for a line while connections stay alive."""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from types import FrameType, TracebackType
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")

PATIENCE_S = 5.0
"""For the loop to stop."""


class Background:
    """For use with `with`, on the main thread, where Ctrl-C arrives."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="background", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        if not self._loop.is_running():
            self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Waits for its result. Ctrl-C cancels it, and is a KeyboardInterrupt once it has ended."""
        call = _Call(self._loop, coroutine)
        before = signal.signal(signal.SIGINT, call.interrupt)
        try:
            self._loop.call_soon_threadsafe(call.start)
            return call.done.result()
        finally:
            signal.signal(signal.SIGINT, before)


class _Call(Generic[T]):
    """One coroutine on its way through the loop. `done` is ready when the coroutine has ended, and not before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        self.done: Future[T] = Future()
        self._loop = loop
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._interrupted = False

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """A signal on the main thread, at any moment: before the coroutine starts, too."""
        self._interrupted = True
        self._loop.call_soon_threadsafe(self._cancel)

    def start(self) -> None:
        """On the loop."""
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._finish)
        if self._interrupted:
            self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _finish(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.done.set_exception(KeyboardInterrupt())
        elif (error := task.exception()) is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(task.result())
