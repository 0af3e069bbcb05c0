"""Whether a child lives: it is heard, and of what it has to do it does some. Pure; counts the watcher's own ticks.

A pong proves only that an event loop turns. So a heartbeat carries duties: what there is to do, and a count that grows
with what has been done. A busy child is healthy, however much waits for it; a stuck one is not.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Patience:
    """How many ticks of `tick_s` a child may be silent, and how many it may have to do something and do nothing."""

    tick_s: float
    silence_ticks: int
    stall_ticks: int


class Report(NamedTuple):
    """One duty, as a heartbeat tells of it: how much of `what` waits to be done, and how much has been done ever."""

    what: str
    pending: int
    done: int


@dataclass(slots=True)
class _Stall:
    report: Report
    ticks: int = 0


@dataclass(slots=True)
class Watch:
    """Over one life of one child."""

    patience: Patience
    _silent_ticks: int = 0
    _stalls: dict[str, _Stall] = field(default_factory=dict)

    def heard(self, reports: Iterable[Report]) -> None:
        """A heartbeat has come."""
        self._silent_ticks = 0
        before, self._stalls = self._stalls, {}
        for report in reports:
            if not report.pending:
                continue
            stall = before.get(report.what)
            stuck = stall is not None and stall.report.done == report.done
            self._stalls[report.what] = _Stall(report, stall.ticks if stall is not None and stuck else 0)

    def tick(self) -> str:
        """The time of another heartbeat has passed; returns why the child is to be killed, if it is, and only once."""
        self._silent_ticks += 1
        for stall in self._stalls.values():
            stall.ticks += 1
        if self._silent_ticks == self.patience.silence_ticks:
            return f"silent for {self._seconds(self._silent_ticks)} s (--heartbeat-timeout-s)"
        for stall in self._stalls.values():
            if stall.ticks == self.patience.stall_ticks:
                what, pending, _ = stall.report
                waited_s = self._seconds(stall.ticks)
                return f"{pending} {what} waited for {waited_s} s and none was dealt with (--stall-timeout-s)"
        return ""

    def _seconds(self, ticks: int) -> str:
        return f"{ticks * self.patience.tick_s:.0f}"
