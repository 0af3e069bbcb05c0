"""How often actors say that they live, and when their watcher counts who did not. Times are arguments, in seconds.

A beat wakes a process that is otherwise idle, which costs milliseconds where caches have gone cold: so there are few of
them, and all actors of a host beat at the same moments. The watcher ticks shortly before each moment: who has not been
heard since its last tick has missed a beat.
"""

import math
from dataclasses import dataclass

BEATS = 5
LONGEST_BEAT_S = 2.0
LEAD = 0.1
"""Part of a beat by which the watcher's tick comes before it."""
EARLY = 0.1
"""Part of a beat by which a timer may be early."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """For actors that may be silent for `timeout_s`."""

    timeout_s: float

    @property
    def beats(self) -> int:
        """Beats within the timeout. Whoever misses so many is killed, within `timeout_s` after its last one."""
        return max(BEATS, math.ceil(self.timeout_s / LONGEST_BEAT_S))

    @property
    def beat_s(self) -> float:
        """Time between two beats."""
        return self.timeout_s / self.beats

    def until_beat(self, now: float) -> float:
        """Time from `now`, on a clock that all actors of the host share, to the next common beat."""
        return self._until(now / self.beat_s)

    def until_tick(self, now: float) -> float:
        """Time from `now`, on the same clock, to the watcher's next tick."""
        return self._until(now / self.beat_s + LEAD)

    def _until(self, beats: float) -> float:
        """Time to the next whole number. One that is just about to come has come: its timer was early."""
        return (math.floor(beats + EARLY) + 1 - beats) * self.beat_s
