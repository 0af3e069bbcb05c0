"""How often and how fast a group of children may restart. Pure: time is an argument in seconds.

Each group has a count of its own. That bounds the whole tree too, by as many times the number of groups; one count for
all would let a tree end sooner the more replicas it has, for deaths that have nothing to do with each other.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Intensity:
    """The bound: `max_restarts` of one group within `window_s`, or without getting ready in between.

    The pause before a restart is `first_pause_s` after a first death, doubles with each further one within the window,
    and is at most `longest_pause_s`.
    """

    max_restarts: int
    window_s: float
    longest_pause_s: float
    first_pause_s: float = 0.1


@dataclass(slots=True)
class Deaths:
    """Those of one group."""

    intensity: Intensity
    _recent: list[float] = field(default_factory=list)
    _unready: int = 0

    def died(self, now: float) -> None:
        """Counts a death."""
        self._recent = [death for death in self._recent if now - death < self.intensity.window_s] + [now]
        self._unready += 1

    def got_ready(self) -> None:
        """The whole group is ready: only what was counted within the window still counts."""
        self._unready = 0

    @property
    def excess(self) -> str:
        """What is too much, or nothing."""
        for count, when in (
            (len(self._recent), f"within {self.intensity.window_s:g} s"),
            (self._unready, "without getting ready"),
        ):
            if count > self.intensity.max_restarts:
                return f"{count} deaths {when} are more than --max-restarts ({self.intensity.max_restarts}) allows"
        return ""

    @property
    def pause_s(self) -> float:
        """Time to wait before the next start."""
        doublings = min(len(self._recent) - 1, 60)  # no pause is so long that more would matter
        return min(self.intensity.first_pause_s * 2.0**doublings, self.intensity.longest_pause_s)
