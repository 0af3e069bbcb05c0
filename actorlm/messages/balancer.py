"""What the Balancer receives: requests from frontends, loads and refusals from engines."""

from typing import Annotated

from msgspec import Meta

from actorlm.messages.actor import Control
from actorlm.messages.engine import Abort, Generate
from actorlm.wire import Int64, Message, Natural, RequestId

Count = Annotated[int, Meta(ge=0)]


class ReplicaAnnounced(Message):
    """An EngineCore is ready. Sent after every handshake, so that a new balancer learns of it too."""

    replica: Natural
    kv_capacity_tokens: Annotated[int, Meta(ge=1)]
    max_num_seqs: Annotated[int, Meta(ge=1)]


class RequestsEnded(Message):
    """These requests have left the replica: finished or aborted."""

    replica: Natural
    requests: Int64


class LoadReported(Message):
    """What a replica has left to do, in tokens. Sent every few steps, and when nothing is left.

    It is about the first `received` requests that the replica was sent in this session; later ones are not in it.
    `waiting_tokens` are those to prefill of requests that wait, `prefill_tokens` of those that run; `decode_tokens` are
    those to generate of both, as far as they count (`scheduling.load.HORIZON`).
    """

    replica: Natural
    received: Count
    waiting_tokens: Count
    prefill_tokens: Count
    decode_tokens: Count
    kv_used_tokens: Count


class RequestRefused(Message):
    """An engine does not take this request. The balancer passes it on to the request's frontend."""

    request: RequestId
    attempt: Natural
    status: int
    code: str | None
    message: str
    param: str | None = None


Inbox = Generate | Abort | ReplicaAnnounced | RequestsEnded | LoadReported | RequestRefused | Control
