"""Sends requests when they are due, as many at a time as are allowed, and gathers what became of them."""

import asyncio
from collections.abc import Callable, Sequence

from actorlm.bench.recording import Clock, Outcome, Recording
from actorlm.remote.failure import Failure
from actorlm.remote.server import Server

TOLD_EVERY_S = 5.0

Due = tuple[float, bytes]
"""Seconds from the beginning, and a request."""


class Load:
    """One run. A request that is due waits for its turn where `max_concurrency` are under way; its time begins then."""

    def __init__(
        self,
        server: Server,
        plan: Sequence[Due],
        *,
        max_concurrency: int | None,
        clock: Clock,
        told: Callable[[str], None],
    ) -> None:
        self.outcomes: list[Outcome] = []
        self.interrupted = False
        self.peak = 0
        """The most requests that were under way together."""
        self._server = server
        self._plan = plan
        self._turns = asyncio.Semaphore(max_concurrency or max(1, len(plan)))
        self._running = 0
        self._clock = clock
        self._told = told

    async def run(self) -> None:
        """Until all have ended. Cancelling it ends what is under way, and returns."""
        tasks: list[asyncio.Task[None]] = []
        telling = asyncio.create_task(self._tell())
        try:
            await self._send(tasks)
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            self.interrupted = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            telling.cancel()

    async def _send(self, tasks: list[asyncio.Task[None]]) -> None:
        began = self._clock()
        for due, request in self._plan:
            if (early := began + due - self._clock()) > 0:
                await asyncio.sleep(early)
            tasks.append(asyncio.create_task(self._one(request)))

    async def _one(self, request: bytes) -> None:
        async with self._turns:
            self._running += 1
            self.peak = max(self.peak, self._running)
            try:
                await self._record(request)
            finally:
                self._running -= 1

    async def _record(self, request: bytes) -> None:
        recording = Recording(self._clock)
        try:
            await self._server.stream(request, recording.receive)
            self.outcomes.append(recording.complete())
        except Failure as failure:
            self.outcomes.append(recording.failed(failure))
        except asyncio.CancelledError:
            self.outcomes.append(recording.interrupted())
            raise

    async def _tell(self) -> None:
        """Seldom, and in one line: drawing would cost what is measured."""
        while True:
            await asyncio.sleep(TOLD_EVERY_S)
            self._told(f"{len(self.outcomes)} of {len(self._plan)} requests, {self._running} under way")
