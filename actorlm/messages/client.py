"""What a client (`actorlm.Client`) receives from the frontend that it is connected to."""

from actorlm.logprobs import Logprobs
from actorlm.wire import Int32, Int64, Message, RequestId, UInt8


class Served(Message):
    """The client may ask now, and this model answers. Said after every handshake."""

    model: str


class Ping(Message):
    """Answer Pong with the same number, which says that all that was sent before has been read."""

    number: RequestId


class TextGenerated(Message):
    """What a client's requests gained in one turn of the frontend, in columns like TextDelta.

    Row i says: choice `choices[i]` of `requests[i]` gained `texts[i]` and the next `counts[i]` ids of `tokens`.
    `finishes[i]` is a `Finish`, `cached[i]` counts the prompt tokens that came from the prefix cache. `logprobs` has
    the same rows; it is None if no row has any.
    """

    requests: Int64
    choices: Int32
    counts: Int32
    tokens: Int32
    texts: tuple[str, ...]
    finishes: UInt8
    cached: Int32
    logprobs: Logprobs | None = None


class RequestCompleted(Message):
    """Every choice of a request has finished. The counts are those of its usage."""

    request: RequestId
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class RequestFailed(Message):
    """A request ended with an error: the status, code, field and time to try again that HTTP answers for it."""

    request: RequestId
    status: int
    code: str | None
    message: str
    param: str | None = None
    retry_after: int | None = None


class Dismissed(Message):
    """The session is over and its requests are aborted, for this reason. The client may join again."""

    reason: str


Inbox = Served | Ping | TextGenerated | RequestCompleted | RequestFailed | Dismissed
