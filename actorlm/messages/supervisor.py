"""What a Supervisor receives: from every actor of its tree, from other hosts, and from operators (`actorlm ps`)."""

from typing import Annotated

import msgspec

from actorlm.messages.actor import MetricSample
from actorlm.wire import Message


class ActorReady(Message):
    """The sender can do its work. `detail` is for the person at the screen (a KV capacity, say)."""

    detail: str = ""


class PhaseChanged(Message):
    """The sender begins a phase of its start. `total` is in bytes where `done` moves, else 0."""

    phase: str
    done: int = 0
    total: int = 0


class Duty(Message):
    """How much of `what` waits for the sender, and how much of it was done ever. Part of Heartbeat.

    While something is `pending`, `done` must grow.
    """

    what: str
    pending: int
    done: int


class Heartbeat(Message):
    """From time to time, from an actor whose event loop turns. `mailbox_depth` counts the messages that wait for it.

    `doing` is a worker's step, or what else it is about. Of requests an engine says how many it runs and how many wait
    there, a frontend how many it has accepted and not ended. `memory_mib` is resident.
    """

    mailbox_depth: int
    doing: str = ""
    duties: tuple[Duty, ...] = ()
    running: int = 0
    waiting: int = 0
    memory_mib: int = 0


class PeerStuck(Message):
    """The queue towards a peer is full: it does not read, so it is to be killed rather than lose messages."""

    name: str


class Drained(Message):
    """Nothing that was accepted is left."""


class ReadMetrics(Message):
    """Collect the metrics of all actors; answered by MetricsCollected."""

    token: int


class MetricsReported(Message):
    """One actor's metrics. The answer to CollectMetrics."""

    token: int
    samples: tuple[MetricSample, ...]


class DescribeTree(Message):
    """An operator asks what is running; answered by TreeDescribed."""


class HostArrived(Message):
    """The sender speaks for a host, whose processes it starts when told to; answered by HostAdmitted or HostRefused.

    `who` is its process and machine, `facts` what all hosts must have alike, by the name of the field, and
    `kv_cache_tokens` what its memory has room for in each replica.
    """

    host: str
    who: str
    facts: dict[str, str]
    kv_cache_tokens: int


class HostLeaving(Message):
    """The sender's host has been told to end; answered by HostReleased when nothing there is needed any more."""


class ProcessStarted(Message):
    """A process exists on the sender's host. The answer to StartProcess."""

    name: str
    incarnation: int
    pid: int


class ProcessEnded(Message):
    """A process of the sender's host has ended in this way."""

    name: str
    incarnation: int
    how: str


FromHosts = HostArrived | HostLeaving | ProcessStarted | ProcessEnded


LONGEST_DRAIN_S = 86_400.0
DrainSeconds = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_DRAIN_S)]


class RestartActors(Message):
    """An operator wants `what` to restart: an actor, a replica, or all. Answered by OrderProgressed, then OrderEnded.

    A frontend gets `drain_s` seconds for what it has; None leaves that to the tree's options.
    """

    what: str
    drain_s: DrainSeconds | None = None


class DrainTree(Message):
    """An operator wants the tree to finish what it has accepted, for up to `drain_s` seconds, and to end.

    None leaves the time to the tree's options. Answered by OrderProgressed, then OrderEnded.
    """

    drain_s: DrainSeconds | None = None


class StopTree(Message):
    """An operator wants the tree to end at once. Answered by OrderProgressed, then OrderEnded."""


class LastAnswerRead(Message):
    """An operator has read OrderEnded: a supervisor that ends may go. What nobody has read is lost with it."""


Order = RestartActors | DrainTree | StopTree
"""What changes something, and operators alone may say."""

FromActors = ActorReady | PhaseChanged | Heartbeat | PeerStuck | Drained | ReadMetrics | MetricsReported

Inbox = FromActors | FromHosts | DescribeTree | LastAnswerRead | Order
