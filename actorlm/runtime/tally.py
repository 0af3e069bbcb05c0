"""What went through one socket, and what it dropped and why. The first of each kind is logged, all are counted."""

from collections import Counter
from collections.abc import Collection

import structlog

_log = structlog.get_logger(__name__)


class Tally:
    """Counts of one socket. `dropped` is by the name of the error; `refused` are connections."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self.sent = 0
        self.received = 0
        self.dropped: Counter[str] = Counter()
        self.refused = 0
        self._refused: set[str] = set()

    def drop(self, error: Exception) -> None:
        """Counts a message that was dropped for this error."""
        kind = type(error).__name__
        self.dropped[kind] += 1
        if self.dropped[kind] == 1:
            _log.warning("message dropped; further ones are counted", socket=self.socket, kind=kind, error=str(error))

    def refuse(self, who: str, why: str) -> None:
        """Counts a connection that was refused. There are only so many different `who`."""
        self.refused += 1
        if who not in self._refused:
            self._refused.add(who)
            _log.warning("connection refused; further ones are counted", socket=self.socket, who=who, why=why)


class Tallies:
    """The tallies of one transport, by socket: one that is opened again goes on counting."""

    def __init__(self) -> None:
        self._by_socket: dict[str, Tally] = {}

    def of(self, kind: str, address: str) -> Tally:
        """The tally of this kind of socket at this address."""
        return self._by_socket.setdefault(f"{kind} {address}", Tally(f"{kind} {address}"))

    def all(self) -> Collection[Tally]:
        """Every tally."""
        return self._by_socket.values()
