"""When to start, restart, kill and give up: the supervisor's decisions, without processes or clocks.

Events go in, effects come out; `actors/supervisor.py` performs them. Time is an argument in seconds; what happens at a
certain time asks for a look then. Silence and stalls are counted in ticks of the watcher itself (`runtime.watch`), so
that a stopped and continued machine is not taken for one.

Before the tree has been ready once, any death takes it down: a tree that cannot start must say so. After that a death
has the consequence that is written in its child, and a group restarts within the bounds of `intensity`. A restart that
an operator ordered is no death: it is not counted, waits for no pause, and says of itself that it was ordered.

What ends because its host is lost is no death either: its group waits for the host, and starts again when it is back.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from actorlm.runtime.children import Child, ChildState, OnDeath
from actorlm.runtime.intensity import Deaths, Intensity
from actorlm.runtime.watch import Patience, Report, Watch


@dataclass(frozen=True, slots=True)
class StartChild:
    """Start a process for this child."""

    name: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class KillChild:
    """Kill this child's process; its exit will be reported. One that `follows` another's death is no news."""

    name: str
    why: str
    follows: bool = False


@dataclass(frozen=True, slots=True)
class EndChild:
    """End this child's process, because an operator wants it; its exit will be reported, and is no news."""

    name: str


@dataclass(frozen=True, slots=True)
class AnnounceLost:
    """Tell all others that this incarnation is gone, and whether that is `excused`: ordered, or the loss of a host."""

    name: str
    role: str
    incarnation: int
    excused: bool = False


@dataclass(frozen=True, slots=True)
class TreeMoved:
    """What the tree can do has changed: `serving` if each role has a ready child; `missing` are not ready."""

    complete: bool
    serving: bool
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LookAt:
    """Call `look` at this time: something may be due."""

    when: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the whole tree with a non-zero status, for this first cause."""

    cause: str


Effect = StartChild | KillChild | EndChild | AnnounceLost | TreeMoved | LookAt | GiveUp


@dataclass(frozen=True, slots=True)
class Limits:
    """How much restarting is too much, how long a child may do nothing, and how long a start may take."""

    intensity: Intensity
    patience: Patience
    start_timeout_s: float


class Supervision:
    """The children of a tree and what to do about them. None is started yet, and the hosts `absent` are not here."""

    def __init__(self, children: Sequence[Child], limits: Limits, absent: Iterable[str] = ()) -> None:
        self.children = {child.name: child for child in children}
        self.limits = limits
        self.was_ready = False
        self._absent = set(absent)
        self._started_at = 0.0
        self._given_up = False
        self._deaths: defaultdict[str, Deaths] = defaultdict(lambda: Deaths(limits.intensity))
        self._watches: dict[str, Watch] = {}
        """Over the children that are ready; before that a start has its own limit."""
        self._due: dict[str, float] = {}
        """When the groups that restart may start, if all of their processes have ended by then."""
        self._ordered: set[str] = set()
        """Those of them that do so because an operator wants it."""
        for child in children:
            alone = len(self.group(child.group)) == 1
            assert alone or child.on_death is not OnDeath.RESTART_ALONE, f"{child.name} is not alone in its group"

    def start(self, now: float) -> list[Effect]:
        """Start all children, in their order, but for groups that lack a host."""
        self._started_at = now
        return [*self._start_waiting(now), LookAt(now + self.limits.start_timeout_s)]

    def add(self, child: Child, now: float) -> list[Effect]:
        """Start one more child, for a time."""
        assert child.name not in self.children, f"{child.name} exists"
        self.children[child.name] = child
        return [self._start(child, now), LookAt(now + self.limits.start_timeout_s)]

    def host_came(self, host: str, now: float) -> list[Effect]:
        """Processes can be started on a host: start what waits for it."""
        self._absent.discard(host)
        return [*self._start_waiting(now), *self._restart_due(now)]

    def host_lost(self, host: str, *, ordered: bool = False) -> None:
        """A host is unreachable, or `ordered` to leave. The ends of its processes are reported as others are.

        What its groups have died of may have been the loss already, so it is forgotten.
        """
        self._absent.add(host)
        groups = {child.group for child in self.children.values() if child.host == host}
        for group in groups:
            self._deaths.pop(group, None)
        if ordered:
            self._ordered |= groups

    def ready(self, name: str, incarnation: int) -> list[Effect]:
        """A child says that it can do its work. An earlier incarnation is not believed."""
        child = self.children[name]
        if child.state is not ChildState.STARTING or child.incarnation != incarnation:
            return []
        child.move(ChildState.READY)
        patience = self.limits.patience
        self._watches[name] = Watch(replace(patience, silence_ticks=patience.silence_ticks + child.slack_ticks))
        self.was_ready = self.was_ready or not self._missing
        if all(other.state is ChildState.READY for other in self.group(child.group)):
            self._deaths[child.group].got_ready()
        return [self._tree()]

    def heard(self, name: str, reports: Iterable[Report]) -> None:
        """A child has sent a heartbeat, and reports on its duties."""
        if name in self._watches:
            self._watches[name].heard(reports)

    def order(self, group: str, now: float) -> list[Effect]:
        """An operator wants this group to end and start again, or what is left of it to start at once."""
        self._ordered.add(group)
        self._due[group] = now
        ends = [EndChild(child.name) for child in self.group(group) if child.alive]
        return [*ends, *self._restart_due(now)]

    def exited(self, name: str, cause: str, now: float) -> list[Effect]:
        """A child's process has ended, whatever its status: while the tree runs, no child may end by itself."""
        child = self.children[name]
        child.move(ChildState.DEAD)
        self._watches.pop(name, None)
        if child.is_extra:
            del self.children[name]
        lacks_host = any(other.host in self._absent for other in self.group(child.group))
        excused = child.group in self._ordered or child.is_extra or lacks_host
        effects: list[Effect] = [AnnounceLost(name, child.role, child.incarnation, excused), self._tree()]
        if child.is_extra:
            return effects
        if child.host in self._absent:
            self._due.setdefault(child.group, now)
            return effects + self._end_group(child)
        if child.group in self._due:
            return [*effects, *self._restart_due(now)]  # the last of its group may end after the pause
        group = self.group(child.group)
        if not self.was_ready or any(other.on_death is OnDeath.END_TREE for other in group):
            return [*effects, *self._give_up(cause)]
        return effects + self._plan_restart(child.group, cause, now) + self._end_group(child)

    def _end_group(self, child: Child) -> list[Effect]:
        """Nobody of a group goes on without `child`."""
        others = [other for other in self.group(child.group) if other.alive]
        return [KillChild(other.name, f"it restarts with {child.name}", True) for other in others]

    def tick(self) -> list[Effect]:
        """The time of another heartbeat has passed: kill what is silent or stuck."""
        reasons = ((name, watch.tick()) for name, watch in self._watches.items())
        return [KillChild(name, why) for name, why in reasons if why]

    def look(self, now: float) -> list[Effect]:
        """Restart what is due by `now`, give up on a start that takes too long."""
        return [*self._late(now), *self._restart_due(now)]

    def group(self, name: str) -> list[Child]:
        """The children of one group."""
        return [child for child in self.children.values() if child.group == name]

    def _late(self, now: float) -> list[Effect]:
        if self.was_ready:
            return self._late_again(now)
        if now < self._started_at + self.limits.start_timeout_s:
            return []
        return self._give_up(
            f"not ready after {self.limits.start_timeout_s:g} s: {', '.join(self._missing)} (--start-timeout-s)"
        )

    def _late_again(self, now: float) -> list[Effect]:
        """A restart gets as long as the first start did; one that takes longer is a death."""
        limit = self.limits.start_timeout_s
        return [
            KillChild(child.name, f"not ready after {limit:g} s (--start-timeout-s)")
            for child in self.children.values()
            if child.state is ChildState.STARTING and now >= child.started_at + limit
        ]

    def _restart_due(self, now: float) -> Iterator[Effect]:
        for group in [group for group, due in self._due.items() if due <= now]:
            members = self.group(group)
            if any(child.alive for child in members) or self._lacks_host(group):
                continue
            del self._due[group]
            self._ordered.discard(group)
            for child in members:
                child.move(ChildState.WAITING)
                yield self._start(child, now)
            yield LookAt(now + self.limits.start_timeout_s)

    def _plan_restart(self, group: str, cause: str, now: float) -> list[Effect]:
        deaths = self._deaths[group]
        deaths.died(now)
        if deaths.excess:
            return self._give_up(f"{cause}; {deaths.excess}")
        self._due[group] = now + deaths.pause_s
        return [LookAt(self._due[group])]

    def _give_up(self, cause: str) -> list[Effect]:
        if self._given_up:
            return []
        self._given_up = True
        return [GiveUp(cause)]

    def _start(self, child: Child, now: float) -> StartChild:
        child.move(ChildState.STARTING)
        child.started_at = now
        child.incarnation += 1
        return StartChild(child.name, child.incarnation)

    def _start_waiting(self, now: float) -> list[Effect]:
        """Start those that were never started."""
        waiting = [child for child in self.children.values() if child.state is ChildState.WAITING]
        return [self._start(child, now) for child in waiting if not self._lacks_host(child.group)]

    def _lacks_host(self, group: str) -> bool:
        return any(child.host in self._absent for child in self.group(group))

    @property
    def _missing(self) -> tuple[str, ...]:
        """Those without which the tree is not complete."""
        return tuple(
            child.name for child in self.children.values() if child.state is not ChildState.READY and not child.is_extra
        )

    def _tree(self) -> TreeMoved:
        missing = self._missing
        down = {child.group for child in self.children.values() if child.state is not ChildState.READY}
        roles = {child.role for child in self.children.values()}
        serving = {child.role for child in self.children.values() if child.group not in down}
        return TreeMoved(complete=not missing, serving=self.was_ready and roles == serving, missing=missing)
