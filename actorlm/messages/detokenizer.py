"""What a Detokenizer receives: open and close from frontends, tokens from engines."""

from typing import Annotated

from msgspec import Meta

from actorlm.messages.actor import Control
from actorlm.messages.frontend import Finish
from actorlm.wire import Int32, Int64, Message, Natural, RequestId, UInt8, check_naturals, read_int32


class Open(Message):
    """Hold text state for one attempt of one request; answered by Opened.

    `context_ids` are the last ids of the prompt, so that the first new token joins them correctly.
    `generated_ids` were delivered by earlier attempts, as `delivered_characters` of text.
    """

    request: RequestId
    attempt: Natural
    context_ids: Int32
    generated_ids: Int32
    delivered_characters: Natural
    stop: tuple[Annotated[str, Meta(min_length=1)], ...]
    include_stop: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError for ids that are none."""
        check_naturals(context_ids=self.context_ids, generated_ids=self.generated_ids)


class Close(Message):
    """Forget these requests."""

    requests: Int64


class TokensSampled(Message):
    """One step's tokens for all requests of one detokenizer, from one replica.

    Row i says: `counts[i]` new ids of `requests[i]`, attempt `attempts[i]`; the ids of all rows follow each other in
    `tokens`. `finishes[i]` is a `Finish`; `cached[i]` counts the prompt tokens that came from the prefix cache.
    """

    replica: int
    requests: Int64
    attempts: Int32
    counts: Int32
    tokens: Int32
    finishes: UInt8
    cached: Int32

    def __post_init__(self) -> None:
        """Raises ValueError for columns that do not fit together."""
        check_naturals(counts=self.counts, tokens=self.tokens)
        rows = len(self.finishes)
        lengths = [len(column) for column in (self.requests, self.attempts, self.counts, self.cached)]
        if lengths != [8 * rows, 4 * rows, 4 * rows, 4 * rows]:
            raise ValueError(f"columns of {lengths} bytes for {rows} rows")
        if 4 * sum(read_int32(self.counts)) != len(self.tokens):
            raise ValueError(f"{sum(read_int32(self.counts))} tokens are counted, and {len(self.tokens)} bytes follow")
        if rows and max(self.finishes) > max(Finish):
            raise ValueError(f"a finish of {max(self.finishes)}, which is none")


Inbox = Open | Close | TokensSampled | Control
