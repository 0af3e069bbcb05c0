"""What a Detokenizer receives: open and close from frontends, tokens from engines."""

from actorlm.messages.actor import Control
from actorlm.wire import Int32, Int64, Message, UInt8


class Open(Message):
    """Hold text state for one attempt of one request; answered by Opened.

    `context_ids` are the last ids of the prompt, so that the first new token joins them correctly.
    `generated_ids` were delivered by earlier attempts, as `delivered_characters` of text.
    """

    request: int
    attempt: int
    context_ids: Int32
    generated_ids: Int32
    delivered_characters: int
    stop: tuple[str, ...]
    include_stop: bool = False
    skip_special_tokens: bool = True


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


Inbox = Open | Close | TokensSampled | Control
