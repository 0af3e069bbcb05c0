"""What a Frontend receives: text from detokenizers, refusals and interruptions from the balancer, clients' requests."""

from enum import IntEnum

from actorlm.logprobs import Logprobs
from actorlm.messages.actor import Control, Drain, MetricsCollected, Retire, TreeChanged
from actorlm.messages.balancer import HopEnded, RequestRefused
from actorlm.wire import Int32, Int64, Message, RequestId, Session, UInt8


class Finish(IntEnum):
    """Why a request ended; 0 where it goes on."""

    NOT_YET = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    STOP_STRING = 4


class Opened(Message):
    """The detokenizer holds the state of this attempt; Generate may leave."""

    request: int
    attempt: int


class TextDelta(Message):
    """New text of all of a frontend's requests that moved in one step, in columns like TokensSampled.

    `texts[i]` belongs to row i and may be empty while a character or a possible stop string is incomplete. `logprobs`
    has the same rows; prompt tokens may come again after a preemption.
    """

    requests: Int64
    attempts: Int32
    counts: Int32
    tokens: Int32
    texts: tuple[str, ...]
    finishes: UInt8
    cached: Int32
    logprobs: Logprobs | None = None


class RequestsInterrupted(Message):
    """These attempts were lost with the process named in `cause`; the next ones start from the frontend.

    With `blames` a replica has died of itself while it worked on them, of one of them perhaps.
    """

    requests: Int64
    attempts: Int32
    cause: str
    blames: bool = False


class FleetChanged(Message):
    """The replicas that take requests now: their numbers, and the smallest KV capacity among them."""

    replicas: tuple[int, ...]
    kv_capacity_tokens: int
    max_num_seqs: int


class Complete(Message):
    """A client asks for the continuation of a prompt: `body` is a JSON object as `/v1/completions` takes it.

    `request` is a number that the client has not used in this session. Answered by TextGenerated, again and again, and
    then by RequestCompleted or RequestFailed. `session` and `replica` are as in Generate. After `timeout_s` seconds a
    request that goes on fails.
    """

    request: RequestId
    body: bytes
    session: Session = ""
    replica: int | None = None
    timeout_s: float | None = None


class Chat(Message):
    """A client asks for the answer to a conversation: as Complete, of `/v1/chat/completions`."""

    request: RequestId
    body: bytes
    session: Session = ""
    replica: int | None = None
    timeout_s: float | None = None


class Withdraw(Message):
    """The client wants no more of these requests. Nothing answers it."""

    requests: Int64


class Pong(Message):
    """The answer to the Ping of this number."""

    number: RequestId


FromClients = Complete | Chat | Withdraw | Pong
"""What clients may say."""

Inbox = (
    Opened
    | TextDelta
    | RequestRefused
    | RequestsInterrupted
    | HopEnded
    | FleetChanged
    | TreeChanged
    | Drain
    | Retire
    | MetricsCollected
    | Control
    | FromClients
)
