"""A supervised child as its supervisor sees it: where it is in its life, and what its death means for others."""

from dataclasses import dataclass
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


class OnDeath(StrEnum):
    """What follows when a child dies once the tree has been ready."""

    RESTART_ALONE = "it restarts"
    """It is the only one of its group."""
    RESTART_GROUP = "its group restarts as one"
    END_TREE = "the tree ends"
    """Somebody else has started it, and nobody can start it again."""
    LET_GO = "it is not replaced"
    """It was only there for a time."""


@dataclass(slots=True)
class Child:
    """One supervised process. `incarnation` counts its starts, from 1; `last_death` is how the last life ended.

    `host` is where it runs, `ranks`, for people, which part of its replica it is. `slack_ticks` may pass beyond the
    patience with its silence: a network's retries.
    """

    name: str
    role: str
    group: str
    on_death: OnDeath
    host: str = ""
    ranks: str = ""
    slack_ticks: int = 0
    state: ChildState = ChildState.WAITING
    incarnation: int = 0
    started_at: float = 0.0
    last_death: str = ""

    @property
    def restarts(self) -> int:
        """Starts after the first."""
        return max(0, self.incarnation - 1)

    @property
    def alive(self) -> bool:
        """Whether a process of it exists."""
        return self.state in (ChildState.STARTING, ChildState.READY)

    @property
    def is_extra(self) -> bool:
        """Whether the tree is complete without it."""
        return self.on_death is OnDeath.LET_GO

    def move(self, state: ChildState) -> None:
        """Makes a legal move; an illegal one is a bug of ours."""
        assert state in MOVES[self.state], f"{self.name}: {self.state} -> {state}"
        self.state = state
