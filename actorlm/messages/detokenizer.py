"""What a Detokenizer receives: open and close from frontends, tokens from engines."""

from array import array
from typing import Annotated

from msgspec import Meta

from actorlm.errors import ProtocolError
from actorlm.logprobs import Logprobs
from actorlm.messages.actor import Control
from actorlm.messages.frontend import Finish
from actorlm.wire import Int32, Int64, Message, Natural, RequestId, UInt8, read_int32

_LAST_FINISH = max(Finish)


def _check_naturals(name: str, column: Int32) -> None:
    """The last byte of each value has its sign."""
    if max(column[3::4], default=0) > 127:
        raise ProtocolError(f"{name} has a negative value")


class Open(Message):
    """Hold text state for one attempt of one request; answered by Opened.

    `context_ids` are the last ids of the prompt, so that the first new token joins them correctly.
    `generated_ids` were delivered by earlier attempts, as `delivered_characters` of text. `trace_id` is for logs.
    The times of one that is `traced` are reported by HopEnded.
    """

    request: RequestId
    attempt: Natural
    context_ids: Int32
    generated_ids: Int32
    delivered_characters: Natural
    stop: tuple[Annotated[str, Meta(min_length=1)], ...]
    include_stop: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    trace_id: str = ""
    traced: bool = False

    def check(self) -> None:
        """Raises ProtocolError for ids that are none, which decoding does not see."""
        _check_naturals("context_ids", self.context_ids)
        _check_naturals("generated_ids", self.generated_ids)


class Close(Message):
    """Forget these requests."""

    requests: Int64


class TokensSampled(Message):
    """One step's tokens for all requests of one detokenizer, from one replica.

    Row i says: `counts[i]` new ids of `requests[i]`, attempt `attempts[i]`; the ids of all rows follow each other in
    `tokens`. `finishes[i]` is a `Finish`; `cached[i]` counts the prompt tokens that came from the prefix cache.
    `logprobs` has the same rows, each with an entry for every new id or for none; a row without new ids is there for
    its prompt's. It is None if no row has any.
    """

    replica: int
    requests: Int64
    attempts: Int32
    counts: Int32
    tokens: Int32
    finishes: UInt8
    cached: Int32
    logprobs: Logprobs | None = None

    def check(self) -> None:
        """Raises ProtocolError for columns that do not fit together, which decoding does not see."""
        rows = len(self.finishes)
        lengths = [len(column) for column in (self.requests, self.attempts, self.counts, self.cached)]
        if lengths != [8 * rows, 4 * rows, 4 * rows, 4 * rows]:
            raise ProtocolError(f"TokensSampled has columns of {lengths} bytes for {rows} rows")
        _check_naturals("counts", self.counts)
        _check_naturals("tokens", self.tokens)
        if 4 * sum(array("i", self.counts)) != len(self.tokens):
            raise ProtocolError(f"TokensSampled has other than the counted tokens, {len(self.tokens)} bytes")
        if max(self.finishes, default=0) > _LAST_FINISH:
            raise ProtocolError(f"TokensSampled has the finish {max(self.finishes)}, which is none")
        if self.logprobs is not None:
            self.logprobs.check(rows)
            scored = zip(read_int32(self.logprobs.outputs), read_int32(self.counts), strict=True)
            if any(outputs not in (0, count) for outputs, count in scored):
                raise ProtocolError("TokensSampled has log-probabilities of other than its tokens")


Inbox = Open | Close | TokensSampled | Control
