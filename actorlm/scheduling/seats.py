"""Slots and KV blocks of the requests that run, and of those that have ended while a step in flight still uses theirs.

Owns: the free slots, the slots that workers have yet to be told of, who is leaving. Must not know: order and policy.
"""

from collections.abc import Iterable

from actorlm.config import BLOCK_SIZE
from actorlm.scheduling.blocks import BlockPool
from actorlm.scheduling.request import Request, State


class Seats:
    """`num_slots` slots, and the blocks of `pool`."""

    def __init__(self, num_slots: int, pool: BlockPool) -> None:
        self._num_slots = num_slots
        self._pool = pool
        self._free = list(range(num_slots - 1, -1, -1))
        self._released: list[int] = []
        self._leaving: set[Request] = set()

    @property
    def has_free(self) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    @property
    def is_left(self) -> bool:
        """Whether blocks come free with a step in flight, because a request that has ended is in it."""
        return bool(self._leaving)

    def take(self, request: Request, cached: list[int], num_fresh: int) -> None:
        """The request enters a free slot, with cached blocks that hold its beginning and so many blank ones."""
        request.move(State.RUNNING)
        request.slot = self._free.pop()
        self._pool.share(cached)
        request.blocks = cached + self._pool.take(num_fresh)
        request.num_shareable = len(cached)
        request.num_scheduled = request.num_computed = len(cached) * BLOCK_SIZE

    def vacate(self, request: Request) -> None:
        """Gives back slot and blocks; no step in flight uses them."""
        self._pool.release(request.blocks)
        self._free.append(request.slot)
        self._released.append(request.slot)
        request.forget_progress()

    def end(self, request: Request) -> None:
        """The request has ended; what a step in flight uses is kept until `settle`."""
        request.move(State.LEAVING)
        self._leaving.add(request)
        self.settle(request)

    def settle(self, request: Request) -> None:
        """Lets a request that has ended go, if no step in flight uses its slot and blocks any more."""
        if not request.steps_in_flight:
            self._leaving.remove(request)
            self.vacate(request)
            request.move(State.FINISHED)

    def released(self) -> list[int]:
        """The slots that came free since this was asked last."""
        released, self._released = self._released, []
        return released

    def check(self, running: Iterable[Request]) -> list[Request]:
        """Proves the accounts of slots and blocks; gives all who hold some. Raises AssertionError."""
        seated = [*running, *self._leaving]
        self._pool.check([request.blocks for request in seated])
        slots = [request.slot for request in seated] + self._free
        assert sorted(slots) == list(range(self._num_slots)), f"slots {sorted(slots)}"
        assert all((request.state is State.LEAVING) == (request in self._leaving) for request in seated), seated
        return seated
