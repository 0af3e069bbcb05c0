"""When a client that was refused should come again: an estimate from what ended and what was refused of late."""

import math
from collections import deque

WINDOW_S = 10.0
LONGEST_S = 30
"""Also said where nothing has ended in the window."""


class Pace:
    """Of one frontend's requests. Time is an argument, in seconds."""

    def __init__(self) -> None:
        self._ended: deque[float] = deque()
        self._refused: deque[float] = deque()

    def ended(self, now: float) -> None:
        """Somebody has left room for another one."""
        _note(self._ended, now)

    def refused(self, now: float) -> int:
        """Somebody finds no room. Gives the seconds in which, at this pace, all who found none could find some."""
        _note(self._refused, now)
        _forget(self._ended, now)
        if not self._ended:
            return LONGEST_S
        return max(1, min(LONGEST_S, math.ceil(WINDOW_S * len(self._refused) / len(self._ended))))


def _note(moments: deque[float], now: float) -> None:
    moments.append(now)
    _forget(moments, now)


def _forget(moments: deque[float], now: float) -> None:
    while moments and moments[0] <= now - WINDOW_S:
        moments.popleft()
