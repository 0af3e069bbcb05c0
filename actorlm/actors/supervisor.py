"""The Supervisor: starts, watches, restarts and ends every process of a host.

Owns: the children, the tree's state, the exit status. Receives readiness, heartbeats and metrics from all actors, and
questions from operators. Decisions are `runtime.supervision`'s; processes come from `spawn`. Must not know: requests.
"""

import asyncio
import contextlib
import math
import signal
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import assert_never

import psutil

from actorlm.actors.roster import Roster
from actorlm.actors.scrape import Scrapes, samples_of
from actorlm.errors import ProtocolError
from actorlm.messages.actor import Census, Drain, MetricSample, PeerLost, Stop, TreeChanged, TreeState
from actorlm.messages.operator import ActorDescribed, TreeDescribed
from actorlm.messages.supervisor import (
    ActorReady,
    DescribeTree,
    Drained,
    Heartbeat,
    Inbox,
    MetricsReported,
    PeerStuck,
    PhaseChanged,
    ReadMetrics,
)  # fmt: skip
from actorlm.runtime.actor import Actor
from actorlm.runtime.child import SUPERVISORS_SIGNALS, SupervisedProcess
from actorlm.runtime.errors import PeerFull, PeerUnknown
from actorlm.runtime.events import LinkEvent, LinkRefused, LinkUp, PeerJoined
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.network import Server
from actorlm.runtime.pulse import Pulse
from actorlm.runtime.supervision import (
    AnnounceLost,
    ChildState,
    Effect,
    GiveUp,
    KillChild,
    LookAt,
    StartChild,
    Supervision,
    TreeMoved,
)  # fmt: skip
from actorlm.runtime.tally import Tally
from actorlm.screen import Screen
from actorlm.topology import Role
from actorlm.wire import Message

STOP_GRACE_S = 4.0
FAILED_STATUS = 1
FORCED_STATUS = 1
INTERRUPTED_STATUS = 130


@dataclass(slots=True)
class _Running:
    """What is known of a child's process besides its state."""

    process: SupervisedProcess
    started_at: float
    phase: str = ""
    phase_at: float = 0.0
    mailbox_depth: int = 0
    doing: str = ""
    killed_for: str = ""
    ends: bool = False
    """Whether its end is no news: it was told to end, or ends with the tree or with another of its group."""


class Supervisor(Actor[Inbox | LinkEvent]):
    """The shell around `runtime.supervision.Supervision`. `status` is the exit status once `run` returns."""

    def __init__(
        self,
        mailbox: Mailbox[Inbox | LinkEvent],
        *,
        server: Server,
        tallies: Collection[Tally],
        supervision: Supervision,
        pulse: Pulse,
        spawn: Callable[[str, int], SupervisedProcess],
        screen: Screen,
        model: str,
        url: str,
        ready_text: str,
        drain_timeout_s: float,
    ) -> None:
        super().__init__(Role.SUPERVISOR, mailbox)
        self._server = server
        self._tallies = tallies
        self._supervision = supervision
        self._pulse = pulse
        self._spawn_child = spawn
        self._screen = screen
        self._model = model
        self._url = url
        self._ready_text = ready_text
        self._drain_timeout_s = drain_timeout_s
        self._running: dict[str, _Running] = {}
        self._scrapes = Scrapes(self._say)
        self._roster = Roster()
        self._state = TreeState.STARTING
        self._closing = False
        self._undrained: set[str] = set()
        self._drained = asyncio.Event()
        self.status = 0
        self.cause = ""

    def receive(self, sender: str, message: Inbox | LinkEvent) -> None:
        """The supervisor's table of contents."""
        if sender not in self._supervision.children and not isinstance(message, DescribeTree | PeerJoined):
            raise ProtocolError(f"{sender}, which is no actor of this tree, says {type(message).__name__}")
        match message:
            case Heartbeat():
                self._heard(sender, message)
            case PhaseChanged():
                self._phase(sender, message)
            case ActorReady():
                self._ready(sender)
            case PeerStuck():
                self._kill(message.name, f"{sender} finds its queue full")
            case Drained():
                self._has_drained(sender)
            case ReadMetrics():
                own = (*self._restarts(), *samples_of(self, self._tallies))
                self._scrapes.begin(sender, message.token, self._members(), own)
            case MetricsReported():
                self._scrapes.reported(sender, message)
            case DescribeTree():
                self._answer_operator(sender)
            case PeerJoined():
                self._greet(message)
            case LinkUp() | LinkRefused():
                pass
            case _:
                assert_never(message)

    async def supervise(self) -> None:
        """Starts the tree and keeps it until a signal or a cause to give up ends it.

        The signals may have been held back until now, when there is something that they can end in order.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_signal, True)
        loop.add_signal_handler(signal.SIGHUP, self._on_signal, True)
        loop.add_signal_handler(signal.SIGINT, self._on_signal, False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SUPERVISORS_SIGNALS)
        self._perform(self._supervision.start(time.monotonic()))
        self.spawn(self._watch())
        await self.run()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._pulse.until_tick(time.monotonic()))
            if not self._closing:
                self._perform(self._supervision.tick())

    def _look(self, when: float) -> None:
        """At `when`, or a little before: timers are rounded."""
        if not self._closing:
            self._perform(self._supervision.look(max(when, time.monotonic())))

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case StartChild():
                    self._start(effect)
                case KillChild():
                    self._kill(effect.name, effect.why, effect.follows)
                case AnnounceLost():
                    self._announce_lost(effect)
                case TreeMoved():
                    self._moved(effect)
                case LookAt():
                    asyncio.get_running_loop().call_later(effect.when - time.monotonic(), self._look, effect.when)
                case GiveUp():
                    self._give_up(effect.cause)
                case _:
                    assert_never(effect)

    # Children.

    def _start(self, effect: StartChild) -> None:
        now = time.monotonic()
        process = self._spawn_child(effect.name, effect.incarnation)
        self._running[effect.name] = _Running(process, now, "start", now)
        process.watch(asyncio.get_running_loop().add_reader, lambda: self._exit(effect.name))

    def _kill(self, name: str, why: str, follows: bool = False) -> None:
        running = self._running.get(name)
        if running is not None:
            was_doing = f"; last heard of: {running.doing}" if running.doing else ""
            running.killed_for = running.killed_for or f"{why}{was_doing}"
            running.ends = running.ends or follows
            running.process.signal(signal.SIGKILL)

    def _exit(self, name: str) -> None:
        running = self._running.pop(name)
        how = running.process.reap(asyncio.get_running_loop().remove_reader)
        if self._closing:
            self._has_drained(name)
        why = f" ({running.killed_for})" if running.killed_for else ""
        cause = f"{name} (pid {running.process.pid}): {how}{why}"
        child = self._supervision.children[name]
        if not running.ends:
            self._screen.line(f"lost {cause}")
        if self._closing:
            if child.state is ChildState.READY and not running.ends:
                self._fail(cause)  # a drain repairs nothing
                self._end_group(child.group, name)
            child.move(ChildState.DEAD)
            self._announce_lost(AnnounceLost(name, child.role, child.incarnation))
            return
        self._perform(self._supervision.exited(name, cause, time.monotonic()))

    def _end_group(self, group: str, name: str) -> None:
        """Nobody of a group goes on without `name`."""
        for other in self._supervision.children.values():
            if other.group == group:
                self._kill(other.name, f"it ends with {name}", True)

    def _announce_lost(self, effect: AnnounceLost) -> None:
        lost = PeerLost(effect.name, effect.role, self._roster.incarnation(effect.name))
        for member in self._members():
            self._say(member, lost)
        if self._roster.lost(lost):
            self._server.forget(effect.name)

    def _heard(self, sender: str, message: Heartbeat) -> None:
        if sender in self._running:
            self._supervision.heard(sender)
            self._running[sender].mailbox_depth = message.mailbox_depth
            self._running[sender].doing = message.doing

    def _phase(self, sender: str, message: PhaseChanged) -> None:
        running = self._running.get(sender)
        if running is None:
            return
        if message.total:
            self._screen.bar(sender, message.done, message.total)
        if message.phase != running.phase:
            self._end_phase(sender, running, message.phase)

    def _ready(self, sender: str) -> None:
        running = self._running.get(sender)
        if running is None:
            return
        if running.phase:
            self._end_phase(sender, running, "")
        self._perform(self._supervision.ready(sender, self._supervision.children[sender].incarnation))

    def _end_phase(self, sender: str, running: _Running, following: str) -> None:
        now = time.monotonic()
        self._screen.phase(sender, running.phase, now - running.phase_at)
        running.phase, running.phase_at = following, now

    # The tree.

    def _moved(self, effect: TreeMoved) -> None:
        if self._closing:
            return
        if effect.complete:
            state = TreeState.READY
        elif not self._supervision.was_ready:
            state = TreeState.STARTING
        else:
            state = TreeState.DEGRADED if effect.serving else TreeState.UNAVAILABLE
        if state == self._state:
            return
        if self._state is TreeState.STARTING:
            self._screen.ready(self._ready_text)
        elif state is TreeState.READY:
            self._screen.line("ready again")
        self._change(state, ", ".join(effect.missing))

    def _change(self, state: TreeState, reason: str = "") -> None:
        self._state = state
        for frontend in self._frontends():
            self._say(frontend, TreeChanged(state, reason))

    def _greet(self, message: PeerJoined) -> None:
        if message.name in self._supervision.children:
            self._roster.joined(message)
        if message.role == Role.FRONTEND:
            self._say(message.name, TreeChanged(self._state))
        elif message.role == Role.BALANCER:
            self._say(message.name, Census(self._ready_engines()))

    def _ready_engines(self) -> tuple[str, ...]:
        children = self._supervision.children.values()
        return tuple(one.name for one in children if one.role == Role.ENGINE and one.state is ChildState.READY)

    def _restarts(self) -> list[MetricSample]:
        children = self._supervision.children.values()
        return [MetricSample("actor_restarts", (child.name,), child.restarts) for child in children]

    def _answer_operator(self, operator: str) -> None:
        """Each command is a peer of its own, whose end nobody announces: it is forgotten at once."""
        self._say(operator, self._describe())
        if operator not in self._supervision.children:
            self._server.forget(operator)

    def _describe(self) -> TreeDescribed:
        rows = tuple(self._describe_child(name) for name in self._supervision.children)
        return TreeDescribed(self._state, self._model, self._url, rows)

    def _describe_child(self, name: str) -> ActorDescribed:
        child, running = self._supervision.children[name], self._running.get(name)
        pid = running.process.pid if running else 0
        return ActorDescribed(
            name=name,
            role=child.role,
            pid=pid,
            state=child.state,
            restarts=child.restarts,
            mailbox_depth=running.mailbox_depth if running else 0,
            memory_mib=_memory_mib(pid),
            uptime_s=time.monotonic() - running.started_at if running else 0.0,
        )

    # The end.

    def _on_signal(self, drain: bool) -> None:
        if self._closing:
            self.status = FORCED_STATUS
            self._kill_all()
            return
        self.status = 0 if drain else INTERRUPTED_STATUS
        self._begin_end(self._drain_timeout_s if drain else 0.0)

    def _give_up(self, cause: str) -> None:
        if not self._closing:
            self._fail(cause)
            for running in self._running.values():
                running.ends = True
            self._begin_end(0.0)

    def _fail(self, cause: str) -> None:
        """What the tree ends with is not what was asked for; the first cause counts."""
        self.status, self.cause = self.status or FAILED_STATUS, self.cause or cause

    def _begin_end(self, drain_s: float) -> None:
        self._closing = True
        self._screen.close()
        self.spawn(self._end(drain_s))

    async def _end(self, drain_s: float) -> None:
        """Drain the frontends, stop them, stop the others; kill what is left."""
        self._undrained = {name for name in self._frontends() if self._state is not TreeState.STARTING}
        self._drained.clear()
        self._change(TreeState.DRAINING)
        if drain_s and self._undrained:
            self._screen.line(f"draining for up to {drain_s:g} s; a second signal forces")
            for frontend in self._undrained:
                self._say(frontend, Drain(drain_s))
            await _wait(self._drained, drain_s)
        self._stop(lambda role: role == Role.FRONTEND)
        await self._wait_for_exits({Role.FRONTEND}, STOP_GRACE_S)
        self._stop(lambda role: role != Role.FRONTEND)
        await self._wait_for_exits(set(Role), STOP_GRACE_S / 4)
        self._kill_all()
        await self._wait_for_exits(set(Role), math.inf)
        self.stop()

    def _stop(self, chosen: Callable[[str], bool]) -> None:
        """Asks children to stop; those that have not joined yet are still importing and own nothing."""
        for name, running in list(self._running.items()):
            if not chosen(self._supervision.children[name].role):
                continue
            running.ends = True
            if name in self._server.peers:
                self._say(name, Stop())
            else:
                running.process.signal(signal.SIGKILL)

    async def _wait_for_exits(self, roles: Collection[str], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not any(self._supervision.children[name].role in roles for name in self._running):
                return
            await asyncio.sleep(0.01)

    def _kill_all(self) -> None:
        self._drained.set()
        for running in self._running.values():
            running.ends = True
            running.process.signal(signal.SIGKILL)

    def _has_drained(self, name: str) -> None:
        self._undrained.discard(name)
        if not self._undrained:
            self._drained.set()

    # Peers.

    def _members(self) -> list[str]:
        return [name for name in self._server.peers if name in self._running]

    def _frontends(self) -> list[str]:
        return [name for name in self._members() if self._supervision.children[name].role == Role.FRONTEND]

    def _say(self, peer: str, message: Message) -> None:
        try:
            self._server.send(peer, message)
        except PeerUnknown:
            return
        except PeerFull:
            self._kill(peer, "it does not read what the supervisor sends")


def _memory_mib(pid: int) -> int:
    """Resident memory of a process; 0 if it is gone."""
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss >> 20) if pid else 0
    return 0


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
