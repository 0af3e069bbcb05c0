"""What an executor knows of its workers: who they are, what they did last, and which of them owe a step for how long.

Pure. Time is counted in ticks of the executor's own process, so that a stopped and continued machine is no stall.
"""

from collections.abc import Iterable
from dataclasses import dataclass

WARNING_SHARE = 0.2
"""Part of the step timeout after which a step that is owed is warned of; again after twice the time, and so on."""
SHORTEST_TICKS = 3
"""A rank tells of its steps once a tick, perhaps just after it: nothing is said of fewer."""


@dataclass(slots=True)
class Rank:
    """One worker. `owes` counts ticks since it had to begin its next step, `silent` those since its last answer."""

    name: str
    host: str = ""
    pid: int = 0
    last_step: int = -1
    doing: str = "starting"
    owes: int = 0
    silent: int = 0
    next_warning_s: float = 0.0


class Ranks:
    """The workers of one replica, by rank. A step may take `step_timeout_s`; a tick is `tick_s` long."""

    def __init__(self, names: Iterable[str], *, step_timeout_s: float, tick_s: float) -> None:
        self._timeout_s = step_timeout_s
        self._tick_s = tick_s
        self._newest_step = -1
        self.all = [Rank(name, next_warning_s=WARNING_SHARE * step_timeout_s) for name in names]

    def introduced(self, rank: int, host: str, pid: int) -> None:
        """A worker says where it is."""
        one = self.all[rank]
        one.host, one.pid, one.doing, one.silent = host, pid, "idle", 0

    def heard(self, rank: int, last_step: int, doing: str) -> None:
        """A worker says what it has finished and what it is doing."""
        one = self.all[rank]
        if (one.last_step, one.doing) != (last_step, doing):
            one.silent = 0
        if last_step > one.last_step:
            one.last_step, one.owes, one.next_warning_s = last_step, 0, WARNING_SHARE * self._timeout_s
        one.doing = doing

    def begun(self, step: int) -> None:
        """All workers have been given a step."""
        self._newest_step = step

    def tick(self) -> tuple[list[int], bool]:
        """Counts. Gives the ranks that a warning is due for, and whether one of them is beyond the timeout."""
        due, is_over = [], False
        for rank, one in enumerate(self.all):
            one.silent += 1
            one.owes = one.owes + 1 if one.last_step < self._newest_step else 0
            waited_s = one.owes * self._tick_s
            if one.owes < SHORTEST_TICKS or waited_s < min(one.next_warning_s, self._timeout_s):
                continue
            one.next_warning_s *= 2
            due.append(rank)
            is_over = is_over or waited_s >= self._timeout_s
        return due, is_over

    def describe(self, ranks: Iterable[int]) -> str:
        """Who they are, when they last answered and what they were doing; who is furthest behind comes first."""
        behind = sorted(ranks, key=lambda rank: (self.all[rank].last_step, rank))
        return "; ".join(self._describe(rank) for rank in behind)

    def _describe(self, rank: int) -> str:
        one = self.all[rank]
        if not one.pid:
            return f"rank {rank} ({one.name}), which has not started yet"
        silent_s = one.silent * self._tick_s
        return f"rank {rank} on {one.host} (pid {one.pid}), last answer {silent_s:.0f} s ago, then: {one.doing}"
