"""What the Balancer receives: requests from frontends, loads and refusals from engines, what both have."""

from typing import Annotated

from msgspec import Meta

from actorlm.messages.actor import Census, Control
from actorlm.messages.engine import Abort, Generate
from actorlm.wire import Int32, Int64, Message, Natural, RequestId

Count = Annotated[int, Meta(ge=0)]


class ReplicaAnnounced(Message):
    """An EngineCore is ready, and holds these attempts of `requests`, of which some are `suspects`.

    Sent after every handshake, so that a new balancer learns of all that goes on without it.
    """

    replica: Natural
    kv_capacity_tokens: Annotated[int, Meta(ge=1)]
    max_num_seqs: Annotated[int, Meta(ge=1)]
    requests: Int64 = b""
    attempts: Int32 = b""
    suspects: Int64 = b""


class Inventory(Message):
    """These attempts a frontend has with engines, and no others. Sent after every handshake.

    What an engine holds beyond it is aborted; what no engine holds is interrupted.
    """

    requests: Int64
    attempts: Int32


class Acquitted(Message):
    """The suspect has got a token: its trial is over, and another may begin."""

    request: RequestId


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


class RequestsLost(Message):
    """Tokens of these attempts may not have been delivered, so their next ones are to start. They have ended here."""

    replica: Natural
    requests: Int64
    attempts: Int32
    cause: str


class TextsCutOff(Message):
    """The replica reaches all detokenizers but these, so other replicas had better have their requests."""

    replica: Natural
    detokenizers: tuple[Natural, ...]


class RequestRefused(Message):
    """An engine does not take this request. The balancer passes it on to the request's frontend."""

    request: RequestId
    attempt: Natural
    status: int
    code: str | None
    message: str
    param: str | None = None


class HopPart(Message):
    """A part of the time that a hop had a request: nanoseconds since the request reached it. Part of HopEnded."""

    name: str
    begin_ns: Count
    end_ns: Count


class HopEnded(Message):
    """A hop has done with an attempt that is traced. From an engine it goes through the balancer to the frontend.

    `counts` are attributes of its span.
    """

    request: RequestId
    attempt: Natural
    hop: str
    actor: str
    parts: tuple[HopPart, ...]
    counts: tuple[tuple[str, int], ...] = ()


Inbox = (
    Generate
    | Abort
    | Inventory
    | Acquitted
    | ReplicaAnnounced
    | RequestsEnded
    | RequestsLost
    | TextsCutOff
    | LoadReported
    | RequestRefused
    | HopEnded
    | Census
    | Control
)
