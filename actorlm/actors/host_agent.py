"""The HostAgent: the supervisor of a host that does not lead. Starts, signals and reports processes for the lead.

One life of it: it connects, says what host it speaks for, and serves until the lead is unreachable for the heartbeat
timeout, or has lost the session. Then its processes are ended, because the lead counts them as such, and the next life
may begin. Decides nothing about them; they are the tree's, and speak to the lead themselves.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterable
from enum import Enum
from typing import assert_never

from actorlm.actors.ending import STOP_GRACE_S
from actorlm.actors.processes import Processes, Running
from actorlm.errors import ConfigError
from actorlm.messages.host import (
    HostAdmitted,
    HostRefused,
    HostReleased,
    Inbox,
    SignalProcess,
    StartProcess,
    StillLeading,
)
from actorlm.messages.supervisor import Heartbeat, HostArrived, HostLeaving, ProcessEnded, ProcessStarted
from actorlm.runtime.actor import Actor
from actorlm.runtime.child import SupervisedProcess
from actorlm.runtime.errors import NotConnected, PeerFull
from actorlm.runtime.events import LinkEvent, LinkRefused, LinkUp, PeerJoined
from actorlm.runtime.identity import steady_clock
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.network import Link
from actorlm.runtime.pulse import Pulse
from actorlm.topology import Role
from actorlm.wire import Message

ASK_AGAIN_S = 1.0
LEAVE_GRACE_S = 5.0
"""Time beyond the drain timeout in which the lead must release a host that has been told to end."""

Spawn = Callable[[str, int], SupervisedProcess]


class Outcome(Enum):
    """How a life ended."""

    CUT_OFF = "cut off"
    MISSING = "missing"
    RELEASED = "released"
    FORCED = "forced"


class HostAgent(Actor[Inbox | LinkEvent]):
    """`spawner` gives what starts processes, for a KV cache of so many tokens and by a clock.

    `outcome` holds once `serve` returns. It waits for the lead for `patience_s`, and gives up one that it has not heard
    for so many beats.
    """

    def __init__(
        self,
        name: str,
        mailbox: Mailbox[Inbox | LinkEvent],
        *,
        link: Link,
        arrival: HostArrived,
        spawner: Callable[[int, Callable[[], int]], Spawn],
        pulse: Pulse,
        say: Callable[[str], None],
        silence_beats: int,
        drain_timeout_s: float,
        patience_s: float,
    ) -> None:
        super().__init__(name, mailbox)
        self._link = link
        self._arrival = arrival
        self._spawner = spawner
        self._pulse = pulse
        self._say = say
        self._silence_beats = silence_beats
        self._drain_timeout_s = drain_timeout_s
        self._patience_s = patience_s
        self._spawn_child: Spawn | None = None
        self._processes = Processes(self._start, self._exited)
        self._incarnations: dict[str, int] = {}
        self._ended = asyncio.Event()
        self._silent_beats = 0
        self._refusals = 0
        self._has_joined = False
        self._is_leaving = False
        self.outcome = Outcome.CUT_OFF

    @property
    def is_admitted(self) -> bool:
        """Whether the lead has this host's processes started."""
        return self._spawn_child is not None

    def receive(self, sender: str, message: Inbox | LinkEvent) -> None:
        """The agent's table of contents. Raises ConfigError if the lead refuses this host."""
        match message:
            case LinkUp():
                self._linked()
            case LinkRefused():
                raise ConfigError(message.reason)
            case HostAdmitted():
                self._admitted(message)
            case HostRefused():
                self._refused(message)
            case StartProcess():
                self._begin(message)
            case SignalProcess():
                self._signal(message)
            case StillLeading():
                self._silent_beats = 0
            case HostReleased():
                self._end(Outcome.RELEASED)
            case PeerJoined():
                pass
            case _:
                assert_never(message)

    async def serve(self) -> None:
        """Serves until the lead is lost or the host is told to leave; then no process of it is left."""
        self.spawn(self._beat())
        asyncio.get_running_loop().call_later(max(0.0, self._patience_s), self._give_up)
        try:
            await self.run()
        finally:
            await self._end_processes()

    def leave(self) -> None:
        """Asks the lead to do without this host; a second call does not wait."""
        if self._is_leaving or not self.is_admitted:
            self._end(Outcome.FORCED if self._is_leaving else Outcome.RELEASED)
            return
        self._is_leaving = True
        self._send(HostLeaving())
        patience_s = self._drain_timeout_s + LEAVE_GRACE_S
        asyncio.get_running_loop().call_later(patience_s, self._end, Outcome.RELEASED)

    def interrupt(self) -> None:
        """Ends at once."""
        self._end(Outcome.FORCED)

    # The lead.

    def _linked(self) -> None:
        if self._has_joined:  # what was said in between may be lost
            self._end(Outcome.CUT_OFF)
            return
        self._has_joined = True
        self._send(self._arrival)

    def _admitted(self, message: HostAdmitted) -> None:
        self._silent_beats = 0
        self._spawn_child = self._spawner(message.kv_cache_tokens, steady_clock(message.now_ns))
        self._say(f"host {self._arrival.host} has joined the lead")

    def _refused(self, message: HostRefused) -> None:
        """Another agent that has been lost is given up by the lead after the heartbeat timeout: ask until then."""
        self._refusals += 1
        if message.final or self._refusals * ASK_AGAIN_S > 2 * self._pulse.timeout_s:
            raise ConfigError(message.reason)
        asyncio.get_running_loop().call_later(ASK_AGAIN_S, self._send, self._arrival)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._pulse.until_beat(time.monotonic()))
            if not self.is_admitted:
                continue
            self._silent_beats += 1
            if self._silent_beats >= self._silence_beats:
                self._end(Outcome.CUT_OFF)
            self._send(Heartbeat(self.mailbox.depth))

    def _send(self, message: Message) -> None:
        """What cannot be said now is not said later: who was cut off joins anew."""
        with contextlib.suppress(NotConnected, PeerFull):
            self._link.send(message)

    def _end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.stop()

    def _give_up(self) -> None:
        if not self.is_admitted:
            self._end(Outcome.MISSING)

    # Processes.

    def _begin(self, message: StartProcess) -> None:
        self._incarnations[message.name] = message.incarnation
        self._processes.start(message.name, message.incarnation)
        running = self._processes.get(message.name)
        assert running is not None, "it has just been started"
        self._send(ProcessStarted(message.name, message.incarnation, running.process.pid))

    def _start(self, name: str, incarnation: int) -> SupervisedProcess:
        assert self._spawn_child is not None, "the lead starts processes of hosts that it has admitted"
        return self._spawn_child(name, incarnation)

    def _signal(self, message: SignalProcess) -> None:
        running = self._processes.get(message.name)
        if running is not None and self._incarnations[message.name] == message.incarnation:
            running.process.signal(message.number)

    def _exited(self, name: str, running: Running, how: str) -> None:
        self._send(ProcessEnded(name, self._incarnations[name], how))
        if not list(self._processes):
            self._ended.set()

    async def _end_processes(self) -> None:
        """Frontends of a host that is released have been told to stop: they get a moment for their last words."""
        frontends = {name for name in self._processes if name.startswith(f"{Role.FRONTEND}-")}
        self._ended.clear()
        if frontends and self.outcome is Outcome.RELEASED:
            self._kill(set(self._processes) - frontends)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), STOP_GRACE_S)
        self._kill(self._processes)
        if list(self._processes):
            await self._ended.wait()

    def _kill(self, names: Iterable[str]) -> None:
        for name in names:
            running = self._processes.get(name)
            if running is not None:
                running.process.signal(signal.SIGKILL)
