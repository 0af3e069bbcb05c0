"""The processes of a supervisor's children: how they start and how they are killed, and what is known of each.

Whether and when is `runtime.supervision`'s to decide; what a child says comes through the supervisor's mailbox.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil

from actorlm.actors.remote import RemoteProcess
from actorlm.messages.supervisor import Heartbeat
from actorlm.runtime.child import SupervisedProcess

NEVER_HEARD = Heartbeat(0)


@dataclass(slots=True)
class Running:
    """What is known of a child's process besides its state."""

    process: SupervisedProcess
    started_at: float
    phase: str = ""
    phase_at: float = 0.0
    heartbeat: Heartbeat = NEVER_HEARD
    killed_for: str = ""
    ends: bool = False
    """Whether its end is no news: it was told to end, or ends with the tree or with another of its group."""

    @property
    def memory_mib(self) -> int:
        """Resident memory; 0 if the process is gone. Of one on another host, as of its last heartbeat."""
        if isinstance(self.process, RemoteProcess):
            return self.heartbeat.memory_mib
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(self.process.pid).memory_info().rss >> 20)
        return 0


class Processes:
    """The processes that exist, by the name of their actor.

    `spawn` starts one by its name and incarnation; `on_exit` is called with the name of one that has ended, what was
    known of it, and how it ended.
    """

    def __init__(
        self,
        spawn: Callable[[str, int], SupervisedProcess],
        on_exit: Callable[[str, Running, str], None],
    ) -> None:
        self._spawn = spawn
        self._on_exit = on_exit
        self._running: dict[str, Running] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._running

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._running))

    def get(self, name: str) -> Running | None:
        """What is known of a process, if it exists."""
        return self._running.get(name)

    def start(self, name: str, incarnation: int) -> None:
        """Starts a process and watches it."""
        now = time.monotonic()
        process = self._spawn(name, incarnation)
        self._running[name] = Running(process, now, "start", now)
        process.watch(asyncio.get_running_loop().add_reader, lambda: self._exited(name))

    def kill(self, name: str, why: str, follows: bool = False) -> None:
        """Kills a process, if it exists, and remembers why. One that `follows` another's death is no news."""
        running = self._running.get(name)
        if running is not None:
            doing = running.heartbeat.doing
            was_doing = f"; last heard of: {doing}" if doing else ""
            running.killed_for = running.killed_for or f"{why}{was_doing}"
            running.ends = running.ends or follows
            running.process.signal(signal.SIGKILL)

    def kill_later(self, name: str, seconds: float) -> None:
        """Kills a process that ends as it was told, unless it has ended by then."""
        running = self._running.get(name)
        if running is None:
            return
        running.ends = True

        def kill() -> None:
            if self._running.get(name) is running:
                self.kill(name, f"it did not end within {seconds:g} s")

        asyncio.get_running_loop().call_later(seconds, kill)

    def kill_all(self) -> None:
        """Kills all that exist, and none of their ends is news."""
        self.expect_ends()
        for running in self._running.values():
            running.process.signal(signal.SIGKILL)

    def expect_end(self, name: str) -> None:
        """The end of this process is no news."""
        if name in self._running:
            self._running[name].ends = True

    def expect_ends(self) -> None:
        """From now on no end of a process is news."""
        for running in self._running.values():
            running.ends = True

    def _exited(self, name: str) -> None:
        running = self._running.pop(name)
        self._on_exit(name, running, running.process.reap(asyncio.get_running_loop().remove_reader))
