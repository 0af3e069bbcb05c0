"""What an operator's tool (`actorlm ps`, `top`, `restart`, `drain`, `stop`) receives from a Supervisor."""

from actorlm.messages.actor import TreeState
from actorlm.wire import Message


class ActorDescribed(Message):
    """One row of `actorlm ps`. Part of TreeDescribed.

    `ranks` says which part of its replica it is. An engine runs `running` requests and `waiting` ones wait there; a
    frontend has accepted `running`. `last_death` is how its last life ended.
    """

    name: str
    role: str
    host: str
    ranks: str
    pid: int
    state: str
    restarts: int
    mailbox_depth: int
    running: int
    waiting: int
    memory_mib: int
    uptime_s: float
    last_death: str


class TreeDescribed(Message):
    """The running tree. The answer to DescribeTree."""

    state: TreeState
    model: str
    url: str
    actors: tuple[ActorDescribed, ...]


class OrderProgressed(Message):
    """An order has come so far. `text` is for the person who gave it."""

    text: str


REFUSED_STATUS = 2
"""Of an order that names nothing of this tree."""


class OrderEnded(Message):
    """The last that is said of an order. `status` is the exit status of its command: 0 if it was done, 2 if refused.

    Of an order that ended the tree LastAnswerRead says that it was read.
    """

    status: int
    text: str


Inbox = TreeDescribed | OrderProgressed | OrderEnded
