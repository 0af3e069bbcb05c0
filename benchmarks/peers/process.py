"""A process and its children: their memory, their CPU time, and standing still."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
USER_AND_SYSTEM = slice(11, 13)
"""Where /proc/PID/stat has its times, after the name of the program."""
IDLE = slice(3, 5)
"""Where the first line of /proc/stat has idle time and waiting for disks; guests' time, last, is counted elsewhere."""


class Tree:
    """The topmost process by its pid, and all below it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def pids(self) -> list[int]:
        """Those that live, the topmost first."""
        parents = {int(entry.name): int(stat[1]) for entry in Path("/proc").glob("[0-9]*") if (stat := _stat(entry))}
        found = [self.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def signal(self, number: int) -> None:
        """To all of them."""
        for pid in self.pids():
            os.kill(pid, number)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Lets the processes run; they stand still again after it."""
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)

    def cpu_s(self) -> float:
        """Seconds of CPU that the living ones used so far."""
        stats = (_stat(Path(f"/proc/{pid}")) for pid in self.pids())
        return sum(int(ticks) for stat in stats for ticks in stat[USER_AND_SYSTEM]) / CLOCK_TICKS

    def memory_mib(self) -> float:
        """Proportional set size of all: a page that several share counts once."""
        return sum(_pss_kib(pid) for pid in self.pids()) / 1024


class OthersCpu:
    """Seconds of CPU that others took, hypervisor included, while `mine` counts what is ours. A machine's quietness."""

    def __init__(self, mine: Callable[[], float]) -> None:
        self._mine = mine
        self._before = _busy_s() - mine()

    def seconds(self) -> float:
        """Since this was made."""
        return max(0.0, _busy_s() - self._mine() - self._before)


def _busy_s() -> float:
    times = [int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(times) - sum(times[IDLE])) / CLOCK_TICKS


def _stat(entry: Path) -> list[str]:
    """What /proc says of a process after its name; nothing of one that is gone."""
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _pss_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
