"""Suspects run one at a time: requests whose replica died again and again before they got a token.

On trial is the one that an engine has, until it gets a token, ends, or dies with its replica. Must not know: where it
runs. That it runs alone there is the scheduler's part.
"""

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Trials(Generic[T]):
    """Suspects by the number of their request, each with what it takes to send it."""

    def __init__(self) -> None:
        self._on_trial: int | None = None
        self._waiting: OrderedDict[int, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting) + (self._on_trial is not None)

    def may_begin(self, request: int) -> bool:
        """Whether the request's trial begins now, because no other one is on trial."""
        if self._on_trial not in (None, request):
            return False
        self._on_trial = request
        return True

    def wait(self, request: int, suspect: T) -> None:
        """A suspect, or its next attempt, has to wait for its trial."""
        self._waiting[request] = suspect

    def over(self, request: int) -> None:
        """The request is on trial no more, or need not wait for one."""
        self._waiting.pop(request, None)
        if self._on_trial == request:
            self._on_trial = None

    def next(self) -> T | None:
        """The suspect whose trial begins, if one waits and none is on trial."""
        if self._on_trial is not None or not self._waiting:
            return None
        self._on_trial, suspect = self._waiting.popitem(last=False)
        return suspect
