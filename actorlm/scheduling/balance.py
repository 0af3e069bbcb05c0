"""The choice of a replica for each request: the one with the least work left for its size.

Owns: which requests each replica has, and how many tokens each was expected to cost. A replica's work is the sum over
those that have not ended; equal ones are chosen by fewest requests, then by who was chosen longest ago. Must not know:
how requests and aborts travel.
"""

from collections.abc import Iterable, KeysView
from dataclasses import dataclass, field

from actorlm.errors import Unavailable


@dataclass(slots=True)
class _Replica:
    """A replica's size and work in tokens. Strangers are requests that it reported and that were not placed here."""

    capacity: int
    turn: int
    requests: set[int] = field(default_factory=set)
    tokens: int = 0
    strangers: int = 0
    stranger_tokens: int = 0

    @property
    def load(self) -> tuple[float, int, int]:
        """Smallest is best."""
        work = (self.tokens + self.stranger_tokens) / self.capacity
        return work, len(self.requests) + self.strangers, self.turn


@dataclass(slots=True)
class _Placed:
    """Where a request is, the tokens expected of it, and how many of its attempts have not ended."""

    replica: int
    tokens: int = 0
    attempts: int = 0


class Balance:
    """Who works on what, until it ends."""

    def __init__(self) -> None:
        self._replicas: dict[int, _Replica] = {}
        self._placed: dict[int, _Placed] = {}
        self._turns = 0

    @property
    def requests(self) -> KeysView[int]:
        """All requests that have been placed and have not ended."""
        return self._placed.keys()

    def join(self, replica: int, capacity: int) -> None:
        """A replica takes requests from now on; `capacity` is its KV cache in tokens. It may be told again."""
        if replica in self._replicas:
            self._replicas[replica].capacity = capacity
        else:
            self._replicas[replica] = _Replica(capacity, self._next_turn())

    def leave(self, replica: int) -> list[int]:
        """A replica is gone; returns the requests that were lost with it, in the order in which they were placed."""
        if self._replicas.pop(replica, None) is None:
            return []
        lost = [request for request, placed in self._placed.items() if placed.replica == replica]
        for request in lost:
            del self._placed[request]
        return lost

    def choose(self, request: int, tokens: int) -> int:
        """The replica that is to work on a request from which `tokens` are expected. Raises Unavailable without one.

        The next attempt of a request that has not ended goes where the last one is, behind the abort of that one; it
        has ended when both have.
        """
        placed = self._placed.get(request)
        if placed is None:
            placed = self._placed[request] = _Placed(self._least_loaded())
        placed.tokens += tokens
        placed.attempts += 1
        replica = self._replicas[placed.replica]
        replica.requests.add(request)
        replica.tokens += tokens
        replica.turn = self._next_turn()
        return placed.replica

    def owner(self, request: int) -> int | None:
        """The replica that works on a request, or None if it has ended or never was."""
        placed = self._placed.get(request)
        return None if placed is None else placed.replica

    def ended(self, requests: Iterable[int]) -> None:
        """An attempt of each of these has left its replica: finished, aborted or refused. Unknown ones are ignored."""
        for request in requests:
            placed = self._placed.get(request)
            if placed is None:
                continue
            placed.attempts -= 1
            if placed.attempts == 0:
                self._forget(request, placed)

    def reported(self, replica: int, *, running: int, waiting: int, kv_used_tokens: int) -> None:
        """What a replica says of its load. It counts for requests that were not placed here: a balancer may be new.

        Tell `ended` of the same report first. Each stranger is expected to cost what a running request holds now.
        """
        known = self._replicas.get(replica)
        if known is None:
            return
        known.strangers = max(0, running + waiting - len(known.requests))
        known.stranger_tokens = known.strangers * max(1, kv_used_tokens // max(1, running))

    def check(self) -> None:
        """Proves the accounts of work. Raises AssertionError."""
        for number, replica in self._replicas.items():
            own = {request: placed for request, placed in self._placed.items() if placed.replica == number}
            assert replica.requests == own.keys(), f"replica {number}: {replica.requests}, placed {own.keys()}"
            assert replica.tokens == sum(placed.tokens for placed in own.values()), f"replica {number}: {replica}"
        for request, placed in self._placed.items():
            assert placed.replica in self._replicas, f"request {request} is at replica {placed.replica}, which is gone"
            assert placed.attempts > 0, f"request {request} has ended and is kept"

    def _least_loaded(self) -> int:
        if not self._replicas:
            raise Unavailable("no replica takes requests now; try again when one has started")
        return min(self._replicas, key=lambda replica: self._replicas[replica].load)

    def _forget(self, request: int, placed: _Placed) -> None:
        del self._placed[request]
        replica = self._replicas[placed.replica]
        replica.requests.remove(request)
        replica.tokens -= placed.tokens

    def _next_turn(self) -> int:
        self._turns += 1
        return self._turns
