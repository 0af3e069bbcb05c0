"""Requests in their order: by rank, which a request keeps for its life. Who leaves is found by a search in halves."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from actorlm.scheduling.request import Request

_rank = attrgetter("rank")


class Line:
    """Those with the lowest rank stand first."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def first(self) -> Request:
        """Who is next."""
        return self._requests[0]

    @property
    def last(self) -> Request:
        """Who yields to all others."""
        return self._requests[-1]

    def add(self, request: Request) -> None:
        """The request takes its place."""
        insort(self._requests, request, key=_rank)

    def remove(self, request: Request) -> None:
        """The request leaves."""
        index = bisect_left(self._requests, request.rank, key=_rank)
        assert self._requests[index] is request, f"request {request.id} does not stand in this line"
        del self._requests[index]
