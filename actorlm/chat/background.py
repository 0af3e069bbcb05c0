"""An event loop on a thread of its own, so that the main thread can wait for a line while connections stay alive."""

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

PATIENCE_S = 5.0
"""For what is cancelled to end."""


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

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Waits for its result. Ctrl-C cancels it; KeyboardInterrupt is raised when it has ended."""
        ended = threading.Event()

        async def noticed() -> T:
            try:
                return await coroutine
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(noticed(), self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            ended.wait(PATIENCE_S)
            raise
