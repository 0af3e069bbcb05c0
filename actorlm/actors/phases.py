"""What the screen shows of processes that start: their phases with the time that each took, and bars."""

import time

from actorlm.actors.processes import Processes, Running
from actorlm.messages.supervisor import PhaseChanged
from actorlm.screen import Screen


class Phases:
    """Of `processes`, on `screen`."""

    def __init__(self, processes: Processes, screen: Screen) -> None:
        self._processes = processes
        self._screen = screen

    def changed(self, name: str, message: PhaseChanged) -> None:
        """A process begins a phase of its start, or has come so far in it."""
        running = self._processes.get(name)
        if running is None:
            return
        if message.total:
            self._screen.bar(name, message.done, message.total)
        if message.phase != running.phase:
            self._end(name, running, message.phase)

    def ended(self, name: str) -> None:
        """The last phase of a start has ended."""
        running = self._processes.get(name)
        if running is not None and running.phase:
            self._end(name, running, "")

    def _end(self, name: str, running: Running, following: str) -> None:
        now = time.monotonic()
        self._screen.phase(name, running.phase, now - running.phase_at)
        running.phase, running.phase_at = following, now
