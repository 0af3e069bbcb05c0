"""What the supervisor of another host, a HostAgent, receives from the Supervisor that leads."""

from actorlm.wire import Message


class HostAdmitted(Message):
    """The host belongs to the tree. Each of its replicas has a KV cache of so many tokens.

    `now_ns` is the time by which lives of processes are ordered, in nanoseconds; the host's own clock may be wrong.
    """

    kv_cache_tokens: int
    now_ns: int


class HostRefused(Message):
    """The host may not join. Unless it is `final`, asking again may help."""

    reason: str
    final: bool


class StartProcess(Message):
    """Start a planned actor's process; answered by ProcessStarted, and by ProcessEnded when it has ended."""

    name: str
    incarnation: int


class SignalProcess(Message):
    """Send a signal to a process, if it still runs."""

    name: str
    incarnation: int
    number: int


class StillLeading(Message):
    """The lead's heartbeat."""


class HostReleased(Message):
    """Nothing is left to do on this host, which had asked to leave."""


Inbox = HostAdmitted | HostRefused | StartProcess | SignalProcess | StillLeading | HostReleased
