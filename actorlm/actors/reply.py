"""What has come of one request of a client and was not taken yet.

Deltas that nobody has taken are merged, so a slow reader costs memory in proportion to its text.
"""

import asyncio

from actorlm.actors.generation import merged
from actorlm.api.ports import Delta
from actorlm.errors import ActorlmError
from actorlm.messages.client import RequestCompleted


class Reply:
    """One request under way. `session` is the one that it was sent in, `number` its number there."""

    def __init__(self, number: int, session: int) -> None:
        self.number = number
        self.session = session
        self.completed: RequestCompleted | None = None
        """How the request ended, if it ended well."""
        self._error: ActorlmError | None = None
        self._fresh: dict[int, Delta] = {}
        self._news = asyncio.Event()

    def feed(self, delta: Delta) -> None:
        """Takes what one choice gained."""
        before = self._fresh.get(delta.choice)
        self._fresh[delta.choice] = delta if before is None else merged(before, delta)
        self._news.set()

    def complete(self, message: RequestCompleted) -> None:
        """Every choice has finished."""
        self.completed = message
        self._news.set()

    def fail(self, error: ActorlmError) -> None:
        """The request ended with an error, after what has come already."""
        self._error = self._error or error
        self._news.set()

    async def take(self) -> Delta | None:
        """The next delta; None after the last. Raises the error that ended the request."""
        while not self._fresh:
            if self._error is not None:
                raise self._error
            if self.completed is not None:
                return None
            self._news.clear()
            await self._news.wait()
        return self._fresh.pop(next(iter(self._fresh)))
