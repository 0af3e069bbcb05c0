"""What every actor receives from the Supervisor."""

from enum import StrEnum

from actorlm.wire import Message


class TreeState(StrEnum):
    """What the whole tree can do now."""

    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    UNAVAILABLE = "unavailable"
    LEAVING = "leaving"
    DRAINING = "draining"

    @property
    def accepts(self) -> bool:
        """Whether requests are accepted, also where it would be better to send them elsewhere."""
        return self in (TreeState.READY, TreeState.DEGRADED, TreeState.LEAVING)


class TreeChanged(Message):
    """The tree is in this state; `reason` names the actors that are missing, if any."""

    state: TreeState
    reason: str = ""


class PeerLost(Message):
    """An incarnation of an actor is gone for good. All that it owned is gone with it.

    `excused` is one that an operator had restarted, or that ended with its host: nothing it worked on is to blame.
    """

    name: str
    role: str
    incarnation: int
    excused: bool = False


class Drain(Message):
    """Accept nothing new; finish what is accepted, then answer Drained. Stop follows after `seconds`."""

    seconds: float


class Census(Message):
    """These engines are ready now, and will announce themselves to the balancer that has just joined."""

    engines: tuple[str, ...]


class Retire(Message):
    """Take no new connections; finish what comes over those that there are, then answer Drained.

    Stop follows after `seconds`. Others take the new connections meanwhile.
    """

    seconds: float


class Stop(Message):
    """End every request with an error and exit with status 0."""


class CollectMetrics(Message):
    """Answer MetricsReported with the same token."""

    token: int


class MetricSample(Message):
    """One value of one metric. `labels` are (name, value) pairs in the metric's order; part of other messages."""

    metric: str
    labels: tuple[str, ...]
    value: float


class MetricsCollected(Message):
    """The samples of every actor that answered in time. The answer to ReadMetrics."""

    token: int
    samples: tuple[MetricSample, ...]


Control = PeerLost | Stop | CollectMetrics
"""What every actor understands. Census goes to balancers, and what else there is to frontends alone."""

FromSupervisor = Control | TreeChanged | Drain | Retire | MetricsCollected | Census
"""What nobody else may say."""
