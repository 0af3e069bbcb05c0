"""Those who stand in their order, by rank, which does not change meanwhile. A search in halves finds who leaves."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

_rank = attrgetter("rank")


class Ranked(Protocol):
    """Whoever may stand in a line."""

    @property
    def rank(self) -> tuple[Any, int]:
        """Its place among all others, who have other ones."""


R = TypeVar("R", bound=Ranked)


class Line(Generic[R]):
    """Those with the lowest rank stand first."""

    def __init__(self) -> None:
        self._standing: list[R] = []

    def __len__(self) -> int:
        return len(self._standing)

    def __iter__(self) -> Iterator[R]:
        return iter(self._standing)

    @property
    def first(self) -> R:
        """Who is next."""
        return self._standing[0]

    @property
    def last(self) -> R:
        """Who yields to all others."""
        return self._standing[-1]

    def add(self, one: R) -> None:
        """Takes its place."""
        insort(self._standing, one, key=_rank)

    def remove(self, one: R) -> None:
        """Leaves."""
        index = bisect_left(self._standing, one.rank, key=_rank)
        assert self._standing[index] is one, f"{one} does not stand in this line"
        del self._standing[index]
