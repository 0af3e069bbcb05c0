"""How long requests may wait before they run. Counted by the replica at which they wait, on its own clock.

Those that were tried before, by a replica that was lost, may wait for any time: they have had their turn. Must not
know: why they wait.
"""

from collections import deque

from actorlm.scheduling.request import Request, State


class Patience:
    """Every request may wait for `seconds`; 0 is for any time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._came: deque[tuple[float, Request]] = deque()

    @property
    def ends_at(self) -> float | None:
        """When the next one may have waited too long, or None."""
        return self._came[0][0] if self._came else None

    def begin(self, request: Request, now: float) -> None:
        """A request begins to wait, after all that did before."""
        if self.seconds and not request.attempt:
            self._came.append((now + self.seconds, request))

    def overdue(self, now: float) -> list[Request]:
        """Those that have waited too long since this was asked last; the others of their time have run, or ended."""
        late: list[Request] = []
        while self._came and self._came[0][0] <= now:
            _, request = self._came.popleft()
            if request.state is State.WAITING:
                late.append(request)
        return late
