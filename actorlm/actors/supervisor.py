"""The Supervisor: starts, watches, restarts and ends every process of a host.

Owns: the tree's state. Receives readiness, heartbeats and metrics from all actors, questions and orders from operators.
Decisions are `runtime.supervision`'s; processes are `actors/processes.py`'s, orders `actors/orders.py`'s, the end is
`actors/ending.py`'s. Must not know: requests.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Iterable
from typing import assert_never

from actorlm.actors.agents import Agents
from actorlm.actors.ending import INTERRUPTED_STATUS, STOP_GRACE_S, Ending
from actorlm.actors.operators import Operators
from actorlm.actors.orders import Orders
from actorlm.actors.peers import Peers
from actorlm.actors.phases import Phases
from actorlm.actors.processes import Processes, Running
from actorlm.actors.rolling import Rolling
from actorlm.actors.scrape import Scrapes, samples_of
from actorlm.errors import ProtocolError
from actorlm.messages.actor import Census, Drain, MetricSample, Stop, TreeChanged, TreeState
from actorlm.messages.supervisor import (
    ActorReady,
    DescribeTree,
    Drained,
    DrainTree,
    FromHosts,
    Heartbeat,
    HostArrived,
    HostLeaving,
    Inbox,
    LastAnswerRead,
    MetricsReported,
    PeerStuck,
    PhaseChanged,
    ProcessEnded,
    ProcessStarted,
    ReadMetrics,
    RestartActors,
    StopTree,
)  # fmt: skip
from actorlm.runtime.actor import Actor
from actorlm.runtime.child import SUPERVISORS_SIGNALS, SupervisedProcess
from actorlm.runtime.children import Child, ChildState
from actorlm.runtime.events import LinkEvent, LinkRefused, LinkUp, PeerJoined
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.network import Server
from actorlm.runtime.pulse import Pulse
from actorlm.runtime.supervision import (
    AnnounceLost,
    Effect,
    EndChild,
    GiveUp,
    KillChild,
    LookAt,
    StartChild,
    Supervision,
    TreeMoved,
)  # fmt: skip
from actorlm.runtime.tally import Tally
from actorlm.runtime.watch import Report
from actorlm.screen import Screen
from actorlm.topology import Role


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
        spare: Callable[[str, int], Child],
        agents: Agents,
        screen: Screen,
        model: str,
        url: str,
        ready_text: str,
        drain_timeout_s: float,
        drain_delay_s: float,
    ) -> None:
        super().__init__(Role.SUPERVISOR, mailbox)
        self._tallies = tallies
        self._supervision = supervision
        self._pulse = pulse
        self._screen = screen
        self._ready_text = ready_text
        self._drain_timeout_s = drain_timeout_s
        self._drain_delay_s = drain_delay_s
        self._processes = Processes(spawn, self._exited)
        self._phases = Phases(self._processes, screen)
        self._agents = agents
        agents.watch(self)
        self._peers = Peers(server, self._processes, self._does_not_read)
        self._end = Ending(supervision.children, self._processes, self._peers)
        self._operators = Operators(supervision, self._processes, self._peers, model=model, url=url)
        self._rolling = Rolling(supervision, self._peers, perform=self._perform, spare=spare)
        self._orders = Orders(
            self._operators,
            self._rolling,
            self._end,
            begin_end=self._begin_end,
            spawn=self.spawn,
            screen=screen,
            drain_timeout_s=drain_timeout_s,
        )
        self._scrapes = Scrapes(self._peers.say)
        self._state = TreeState.STARTING
        self._leaving: dict[str, set[str]] = {}
        """The hosts that have been told to end, and their frontends that are not done yet."""

    @property
    def status(self) -> int:
        """The exit status."""
        return self._end.status

    @property
    def cause(self) -> str:
        """Why the tree ended with a status that nobody asked for."""
        return self._end.cause

    def receive(self, sender: str, message: Inbox | LinkEvent) -> None:
        """The supervisor's table of contents."""
        self._check_sender(sender, message)
        match message:
            case Heartbeat():
                self._heard(sender, message)
            case PhaseChanged():
                self._phases.changed(sender, message)
            case ActorReady():
                self._ready(sender)
            case PeerStuck():
                self._processes.kill(message.name, f"{sender} finds its queue full")
            case Drained():
                self._drained(sender)
            case ReadMetrics():
                own = (*self._restarts(), *samples_of(self, self._tallies))
                self._scrapes.begin(sender, message.token, self._peers.members, own)
            case MetricsReported():
                self._scrapes.reported(sender, message)
            case HostArrived() | HostLeaving() | ProcessStarted() | ProcessEnded():
                self._agents.receive(sender, message)
            case DescribeTree():
                self._operators.describe(sender, self._state)
            case LastAnswerRead():
                self._operators.has_read(sender)
            case RestartActors() | DrainTree() | StopTree():
                self._orders.receive(sender, message)
            case PeerJoined():
                self._greet(message)
            case LinkUp() | LinkRefused():
                pass
            case _:
                assert_never(message)

    def _check_sender(self, sender: str, message: Inbox | LinkEvent) -> None:
        """Raises ProtocolError for what is not the sender's to say."""
        if isinstance(message, PeerJoined):
            return
        if isinstance(message, DescribeTree | LastAnswerRead | RestartActors | DrainTree | StopTree):
            self._operators.check(sender, message)
            return
        of_hosts = isinstance(message, FromHosts) or (isinstance(message, Heartbeat) and sender in self._agents)
        if sender not in (self._agents if of_hosts else self._supervision.children):
            raise ProtocolError(f"{sender}, who may not say so in this tree, says {type(message).__name__}")

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
        self.spawn(self._agents.remind())
        await self.run()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._pulse.until_tick(time.monotonic()))
            self._agents.tick()
            if not self._end.closes:
                self._perform(self._supervision.tick())

    def _look(self, when: float) -> None:
        """At `when`, or a little before: timers are rounded."""
        if not self._end.closes:
            self._perform(self._supervision.look(max(when, time.monotonic())))

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case StartChild():
                    self._processes.start(effect.name, effect.incarnation)
                case KillChild():
                    self._processes.kill(effect.name, effect.why, effect.follows)
                case EndChild():
                    self._end_child(effect.name)
                case AnnounceLost():
                    self._peers.announce_lost(effect.name, effect.role, effect.excused)
                case TreeMoved():
                    self._moved(effect)
                case LookAt():
                    asyncio.get_running_loop().call_later(effect.when - time.monotonic(), self._look, effect.when)
                case GiveUp():
                    self._give_up(effect.cause)
                case _:
                    assert_never(effect)

    # Children.

    def _exited(self, name: str, running: Running, how: str) -> None:
        self._drained(name)
        why = f" ({running.killed_for})" if running.killed_for else ""
        cause = f"{name} (pid {running.process.pid}): {how}{why}"
        self._supervision.children[name].last_death = f"{how}{why}".splitlines()[0]
        if not running.ends:
            self._screen.line(f"lost {cause}", "warning")
        is_frontend = self._supervision.children[name].role == Role.FRONTEND
        if self._end.closes or (self._end.has_begun and is_frontend):
            self._exited_at_the_end(name, running, cause)
        else:
            self._perform(self._supervision.exited(name, cause, time.monotonic()))

    def _exited_at_the_end(self, name: str, running: Running, cause: str) -> None:
        """Nobody follows. A frontend that drains takes what it had accepted along, and the success."""
        child = self._supervision.children[name]
        if child.state is ChildState.READY and not running.ends:
            self._end.fail(cause)
        child.move(ChildState.DEAD)
        self._peers.announce_lost(name, child.role)

    def _does_not_read(self, name: str) -> None:
        self._processes.kill(name, "it does not read what the supervisor sends")

    def _heard(self, sender: str, message: Heartbeat) -> None:
        self._agents.heard(sender)
        running = self._processes.get(sender)
        if running is not None:
            self._supervision.heard(sender, [Report(duty.what, duty.pending, duty.done) for duty in message.duties])
            running.heartbeat = message

    def _ready(self, sender: str) -> None:
        if sender in self._processes:
            self._phases.ended(sender)
            self._perform(self._supervision.ready(sender, self._supervision.children[sender].incarnation))

    def _end_child(self, name: str) -> None:
        """A frontend is asked, so that what it has to say leaves; all others can be taken away at any moment."""
        if self._supervision.children[name].role == Role.FRONTEND and self._peers.has(name):
            self._peers.say(name, Stop())
            self._processes.kill_later(name, STOP_GRACE_S)
        else:
            self._processes.kill(name, "an operator restarts it", follows=True)

    # Hosts.

    def host_came(self, host: str) -> None:
        """See `agents.Watcher`."""
        self._screen.line(f"host {host} has joined")
        if not self._end.closes:
            self._perform(self._supervision.host_came(host, time.monotonic()))

    def host_leaves(self, host: str) -> None:
        """See `agents.Watcher`. Its frontends finish what they have accepted."""
        frontends = self._leaving[host] = set(self._frontends_of(host))
        for frontend in frontends:
            self._peers.say(frontend, Drain(self._drain_timeout_s))
        delay_s = self._drain_timeout_s if frontends else 0.0
        asyncio.get_running_loop().call_later(delay_s, self._release, host)

    def _frontends_of(self, host: str) -> list[str]:
        return [name for name in self._peers.frontends if self._supervision.children[name].host == host]

    def _release(self, host: str) -> None:
        """Its agent waits a moment for its frontends, so that what they have to say leaves."""
        for frontend in self._frontends_of(host):
            self._peers.say(frontend, Stop())
        self._agents.release(host)

    def _drained(self, frontend: str) -> None:
        self._end.has_drained(frontend)
        self._rolling.has_drained(frontend)
        for host, frontends in list(self._leaving.items()):
            if frontend in frontends:
                frontends.discard(frontend)
                if not frontends:
                    self._release(host)

    def host_lost(self, host: str, why: str, *, ordered: bool) -> None:
        """See `agents.Watcher`."""
        children = [child for child in self._supervision.children.values() if child.host == host]
        self._screen.line(f"lost host {host}: {why}; with it {', '.join(child.name for child in children)}", "warning")
        self._leaving.pop(host, None)
        self._supervision.host_lost(host, ordered=ordered)
        for child in children:
            self._processes.expect_end(child.name)

    # The tree.

    def _moved(self, effect: TreeMoved) -> None:
        if self._end.has_begun:
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
        for frontend in self._peers.frontends:
            self._peers.say(frontend, TreeChanged(state, reason))

    def _greet(self, message: PeerJoined) -> None:
        if message.name in self._supervision.children:
            self._peers.joined(message)
        if message.role == Role.HOST:
            self._agents.joined(message.name)
        if message.role == Role.FRONTEND:
            self._peers.say(message.name, TreeChanged(self._state))
        elif message.role == Role.OPERATOR:
            self._operators.joined(message.name)
        elif message.role == Role.BALANCER:
            self._peers.say(message.name, Census(self._ready_engines()))

    def _ready_engines(self) -> tuple[str, ...]:
        children = self._supervision.children.values()
        return tuple(one.name for one in children if one.role == Role.ENGINE and one.state is ChildState.READY)

    def _restarts(self) -> list[MetricSample]:
        children = self._supervision.children.values()
        return [MetricSample("actor_restarts", (child.name,), child.restarts) for child in children]

    # The end.

    def _on_signal(self, drain: bool) -> None:
        if self._end.has_begun:
            self._end.force()
            return
        self._end.status = 0 if drain else INTERRUPTED_STATUS
        self._begin_end(self._drain_timeout_s if drain else 0.0)

    def _give_up(self, cause: str) -> None:
        if self._end.closes:
            return
        self._end.fail(cause)
        self._processes.expect_ends()
        if self._end.has_begun:
            self._end.cut_short()
        else:
            self._begin_end(0.0)

    def _begin_end(self, drain_s: float) -> None:
        self._orders.begin_end()
        self._screen.close()
        drains = self._end.begin(drain_s, [] if self._state is TreeState.STARTING else self._peers.frontends)
        delay_s = self._drain_delay_s if drains else 0.0
        self._change(TreeState.LEAVING if delay_s else TreeState.DRAINING)
        if delay_s:
            self._screen.line(f"not ready any more, refusing in {delay_s:g} s; a second signal forces")
        self.spawn(self._run_end(drain_s, delay_s))

    async def _run_end(self, drain_s: float, delay_s: float) -> None:
        if delay_s:
            await self._end.linger(delay_s)
            self._change(TreeState.DRAINING)
        if not self._end.closes:
            self._screen.line(f"draining for up to {drain_s:g} s; a second signal forces")
        await self._end.run(drain_s)
        self._orders.ended()
        await self._operators.until_read()
        self.stop()
