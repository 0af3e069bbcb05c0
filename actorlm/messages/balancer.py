"""What the Balancer receives: requests from frontends, loads and refusals from engines."""

from typing import Annotated

from msgspec import Meta

from actorlm.messages.actor import Control
from actorlm.messages.engine import Abort, Generate
from actorlm.wire import Int64, Message, Natural, RequestId


class ReplicaAnnounced(Message):
    """An EngineCore is ready. Sent after every handshake, so that a new balancer learns of it too."""

    replica: Natural
    kv_capacity_tokens: Annotated[int, Meta(ge=1)]
    max_num_seqs: Annotated[int, Meta(ge=1)]


class LoadReported(Message):
    """A replica's load after a step in which it changed, and the requests that left it."""

    replica: Natural
    running: Natural
    waiting: Natural
    kv_used_tokens: Annotated[int, Meta(ge=0)]
    ended: Int64


class RequestRefused(Message):
    """An engine does not take this request. The balancer passes it on to the request's frontend."""

    request: RequestId
    attempt: Natural
    status: int
    code: str | None
    message: str
    param: str | None = None


Inbox = Generate | Abort | ReplicaAnnounced | LoadReported | RequestRefused | Control
