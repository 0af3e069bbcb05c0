"""What an operator's tool (`actorlm ps`) receives from a Supervisor."""

from actorlm.messages.actor import TreeState
from actorlm.wire import Message


class ActorDescribed(Message):
    """One row of `actorlm ps`. Part of TreeDescribed."""

    name: str
    role: str
    pid: int
    state: str
    restarts: int
    mailbox_depth: int
    memory_mib: int
    uptime_s: float


class TreeDescribed(Message):
    """The running tree. The answer to DescribeTree."""

    state: TreeState
    model: str
    url: str
    actors: tuple[ActorDescribed, ...]


Inbox = TreeDescribed
