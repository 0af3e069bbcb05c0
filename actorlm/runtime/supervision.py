"""When to start, restart, kill and give up: the supervisor's decisions, without processes or clocks.

Events go in, effects come out; `actors/supervisor.py` performs them. Time is an argument in seconds; what happens at a
certain time asks for a look then. Silence is counted in ticks of the watcher itself, so that a stopped and continued
machine is not taken for a stall.

Before the tree has been ready once, any death takes it down: a tree that cannot start must say so. So does later a
death in the group of a child that is not replaceable, because somebody else has started it. After any other death the
group of the dead child restarts as one, with growing pauses, until `max_restarts` are exceeded: within `window_s`, or
without getting ready in between, however long each try takes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class ChildState(StrEnum):
    """Where a child is in its life."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    DEAD = "dead"


MOVES: dict[ChildState, tuple[ChildState, ...]] = {
    ChildState.WAITING: (ChildState.STARTING,),
    ChildState.STARTING: (ChildState.READY, ChildState.DEAD),
    ChildState.READY: (ChildState.DEAD,),
    ChildState.DEAD: (ChildState.WAITING,),
}


@dataclass(slots=True)
class Child:
    """One supervised process. `incarnation` counts its starts, from 1."""

    name: str
    role: str
    group: str
    replaceable: bool = True
    state: ChildState = ChildState.WAITING
    incarnation: int = 0
    silent_ticks: int = 0
    started_at: float = 0.0

    @property
    def restarts(self) -> int:
        """Starts after the first."""
        return max(0, self.incarnation - 1)

    @property
    def alive(self) -> bool:
        """Whether a process of it exists."""
        return self.state in (ChildState.STARTING, ChildState.READY)

    def move(self, state: ChildState) -> None:
        """Makes a legal move; an illegal one is a bug of ours."""
        assert state in MOVES[self.state], f"{self.name}: {self.state} -> {state}"
        self.state = state


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
class AnnounceLost:
    """Tell all others that this incarnation is gone."""

    name: str
    role: str
    incarnation: int


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


Effect = StartChild | KillChild | AnnounceLost | TreeMoved | LookAt | GiveUp


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often and how fast to restart, and how many ticks of `tick_s` silence may last."""

    max_restarts: int
    silence_ticks: int
    tick_s: float
    start_timeout_s: float
    window_s: float = 60.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0


@dataclass(slots=True)
class Supervision:
    """The children of one host and what to do about them."""

    children: dict[str, Child]
    policy: RestartPolicy
    was_ready: bool = False
    started_at: float = 0.0
    given_up: bool = False
    _deaths: list[float] = field(default_factory=list)
    _due: dict[str, float] = field(default_factory=dict)
    _unready: dict[str, int] = field(default_factory=dict)
    """Deaths of a group since it was ready."""

    @classmethod
    def of(cls, children: Sequence[Child], policy: RestartPolicy) -> "Supervision":
        """Supervision of `children`, none of them started."""
        return cls({child.name: child for child in children}, policy)

    def start(self, now: float) -> list[Effect]:
        """Start all children, in their order."""
        self.started_at = now
        starts = [self._start(child, now) for child in self.children.values()]
        return [*starts, LookAt(now + self.policy.start_timeout_s)]

    def ready(self, name: str, incarnation: int) -> list[Effect]:
        """A child says that it can do its work. An earlier incarnation is not believed."""
        child = self.children[name]
        if child.state is not ChildState.STARTING or child.incarnation != incarnation:
            return []
        child.move(ChildState.READY)
        child.silent_ticks = 0
        self.was_ready = self.was_ready or self._complete
        if all(other.state is ChildState.READY for other in self._group(child.group)):
            self._unready.pop(child.group, None)
        return [self._tree()]

    def heard(self, name: str) -> None:
        """A child has sent a heartbeat."""
        self.children[name].silent_ticks = 0

    def exited(self, name: str, cause: str, now: float) -> list[Effect]:
        """A child's process has ended, whatever its status: while the tree runs, no child may end."""
        child = self.children[name]
        child.move(ChildState.DEAD)
        effects: list[Effect] = [AnnounceLost(name, child.role, child.incarnation), self._tree()]
        if child.group in self._due:
            return [*effects, *self._restart_due(now)]  # the last of its group may end after the pause
        if not self.was_ready or not all(other.replaceable for other in self._group(child.group)):
            return [*effects, *self._give_up(cause)]
        effects += self._plan_restart(child.group, cause, now)
        group = self._group(child.group)
        return effects + [KillChild(other.name, f"it restarts with {name}", True) for other in group if other.alive]

    def tick(self) -> list[Effect]:
        """The time of another heartbeat has passed: kill what is silent."""
        return list(self._silent())

    def look(self, now: float) -> list[Effect]:
        """Restart what is due by `now`, give up on a start that takes too long."""
        return [*self._late(now), *self._restart_due(now)]

    def _late(self, now: float) -> list[Effect]:
        if self.was_ready:
            return self._late_again(now)
        if now < self.started_at + self.policy.start_timeout_s:
            return []
        missing = ", ".join(child.name for child in self.children.values() if child.state is not ChildState.READY)
        return self._give_up(f"not ready after {self.policy.start_timeout_s:g} s: {missing} (--start-timeout-s)")

    def _late_again(self, now: float) -> list[Effect]:
        """A restart gets as long as the first start did; one that takes longer is a death."""
        limit = self.policy.start_timeout_s
        return [
            KillChild(child.name, f"not ready after {limit:g} s (--start-timeout-s)")
            for child in self.children.values()
            if child.state is ChildState.STARTING and now >= child.started_at + limit
        ]

    def _silent(self) -> Iterator[Effect]:
        for child in self.children.values():
            if child.state is not ChildState.READY:
                continue
            child.silent_ticks += 1
            if child.silent_ticks == self.policy.silence_ticks:
                silent_s = child.silent_ticks * self.policy.tick_s
                yield KillChild(child.name, f"silent for {silent_s:.0f} s (--heartbeat-timeout-s)")

    def _restart_due(self, now: float) -> Iterator[Effect]:
        for group in [group for group, due in self._due.items() if due <= now]:
            members = self._group(group)
            if any(child.alive for child in members):
                continue
            del self._due[group]
            for child in members:
                child.move(ChildState.WAITING)
                yield self._start(child, now)
            yield LookAt(now + self.policy.start_timeout_s)

    def _plan_restart(self, group: str, cause: str, now: float) -> list[Effect]:
        self._deaths = [death for death in self._deaths if now - death < self.policy.window_s] + [now]
        self._unready[group] = self._unready.get(group, 0) + 1
        for deaths, when in (
            (len(self._deaths), f"within {self.policy.window_s:g} s"),
            (self._unready[group], "without getting ready"),
        ):
            if deaths > self.policy.max_restarts:
                return self._give_up(
                    f"{cause}; {deaths} deaths {when} are more than --max-restarts ({self.policy.max_restarts}) allows"
                )
        pause = self.policy.first_pause_s * 2.0 ** (len(self._deaths) - 1)
        self._due[group] = now + min(pause, self.policy.longest_pause_s)
        return [LookAt(self._due[group])]

    def _give_up(self, cause: str) -> list[Effect]:
        if self.given_up:
            return []
        self.given_up = True
        return [GiveUp(cause)]

    def _start(self, child: Child, now: float) -> StartChild:
        child.move(ChildState.STARTING)
        child.started_at = now
        child.incarnation += 1
        child.silent_ticks = 0
        return StartChild(child.name, child.incarnation)

    def _group(self, group: str) -> list[Child]:
        return [child for child in self.children.values() if child.group == group]

    @property
    def _complete(self) -> bool:
        return all(child.state is ChildState.READY for child in self.children.values())

    def _tree(self) -> TreeMoved:
        missing = tuple(child.name for child in self.children.values() if child.state is not ChildState.READY)
        down = {child.group for child in self.children.values() if child.name in missing}
        roles = {child.role for child in self.children.values()}
        serving = {child.role for child in self.children.values() if child.group not in down}
        return TreeMoved(complete=not missing, serving=self.was_ready and roles == serving, missing=missing)
