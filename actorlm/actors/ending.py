"""How a tree ends: the drain, the order in which its processes stop, its exit status and first cause."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from actorlm.actors.peers import Peers
from actorlm.actors.processes import Processes
from actorlm.messages.actor import Drain, Stop
from actorlm.runtime.children import Child
from actorlm.topology import Role

STOP_GRACE_S = 4.0
FAILED_STATUS = 1
FORCED_STATUS = 1
INTERRUPTED_STATUS = 130


class Ending:
    """Begins at most once. `status` is the tree's exit status, and `cause` why it is none that was asked for.

    It begins with a drain perhaps, in which the tree goes on as ever; once it `closes` nothing is repaired any more.
    `is_clean` says whether every frontend had finished what it had before it was stopped.
    """

    def __init__(self, children: Mapping[str, Child], processes: Processes, peers: Peers) -> None:
        self._children = children
        self._processes = processes
        self._peers = peers
        self._undrained: set[str] = set()
        self._drained = asyncio.Event()
        self.has_begun = False
        self.closes = False
        self.status = 0
        self.cause = ""
        self.is_clean = True

    def fail(self, cause: str) -> None:
        """What the tree ends with is not what was asked for; the first cause counts."""
        self.status, self.cause = self.status or FAILED_STATUS, self.cause or cause

    def force(self) -> None:
        """Nobody gets time to finish."""
        self.status = FORCED_STATUS
        self._kill_all()

    def cut_short(self) -> None:
        """Nobody gets more time to drain."""
        self.closes = True
        self._drained.set()

    def begin(self, drain_s: float, undrained: Iterable[str]) -> bool:
        """The first step of the end. Returns whether there is anything to drain."""
        self.has_begun = True
        self._undrained = set(undrained)
        self.closes = not (drain_s and self._undrained)
        return not self.closes

    def has_drained(self, name: str) -> None:
        """A frontend has nothing left, or has ended."""
        if name in self._undrained:
            self._undrained.remove(name)
            if not self._undrained:
                self._drained.set()

    async def linger(self, seconds: float) -> None:
        """Serves on for a while, unless nobody gets more time."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), seconds)

    async def run(self, drain_s: float) -> None:
        """Lets frontends finish for up to `drain_s`, stops them, stops the others; kills what is left."""
        if not self.closes:
            for frontend in self._undrained:
                self._peers.say(frontend, Drain(drain_s))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), drain_s)
        self.closes = True
        self.is_clean = not self._undrained
        self._stop(lambda role: role == Role.FRONTEND)
        await self._wait_for_exits({Role.FRONTEND}, STOP_GRACE_S)
        self._stop(lambda role: role != Role.FRONTEND)
        await self._wait_for_exits(set(Role), STOP_GRACE_S / 4)
        self._kill_all()
        await self._wait_for_exits(set(Role), math.inf)

    def _stop(self, chosen: Callable[[str], bool]) -> None:
        """Asks children to stop; those that have not joined yet are still importing and own nothing."""
        for name in self._processes:
            running = self._processes.get(name)
            if running is None or not chosen(self._children[name].role):
                continue
            running.ends = True
            if self._peers.has(name):
                self._peers.say(name, Stop())
            else:
                self._processes.kill(name, "it has not joined yet", follows=True)

    async def _wait_for_exits(self, roles: Collection[str], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not any(self._children[name].role in roles for name in self._processes):
                return
            await asyncio.sleep(0.01)

    def _kill_all(self) -> None:
        self.cut_short()
        self._processes.kill_all()
