"""What the Balancer receives: requests from frontends, loads and refusals from engines."""

from actorlm.messages.actor import Control
from actorlm.messages.engine import Abort, Generate
from actorlm.wire import Int64, Message


class ReplicaAnnounced(Message):
    """An EngineCore is ready. Sent after every handshake, so that a new balancer learns of it too."""

    replica: int
    kv_capacity_tokens: int
    max_num_seqs: int


class LoadReported(Message):
    """A replica's load after a step in which it changed, and the requests that left it."""

    replica: int
    running: int
    waiting: int
    kv_used_tokens: int
    ended: Int64


class RequestRefused(Message):
    """An engine does not take this request. The balancer passes it on to the request's frontend."""

    request: int
    attempt: int
    status: int
    code: str | None
    message: str
    param: str | None = None


Inbox = Generate | Abort | ReplicaAnnounced | LoadReported | RequestRefused | Control
