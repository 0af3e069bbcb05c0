"""Messages to bytes and back. What comes in may be anything; what goes out of here is a message or a ProtocolError."""

from typing import Any, Generic, TypeVar, get_args

import msgspec

from actorlm.runtime.columns import whole_columns
from actorlm.runtime.errors import BadBody, MessageTooLarge
from actorlm.wire import Message

M = TypeVar("M")

MAX_MESSAGE_BYTES = 16 * 2**20

Body = bytes | Message | None
"""What arrived: bytes of a wire, a message handed over inside of the process, or nothing after the header."""

_encoder = msgspec.msgpack.Encoder()
_UNDECODABLE = (msgspec.MsgspecError, RecursionError, ValueError, OverflowError, MemoryError, TypeError)


def encode(message: Message, max_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
    """The message as msgpack. Raises BadBody for values that msgpack cannot carry, and MessageTooLarge."""
    try:
        body = _encoder.encode(message)
    except (msgspec.MsgspecError, ValueError, OverflowError, TypeError) as error:
        raise BadBody(f"{type(message).__name__} cannot be encoded: {error}") from error
    if len(body) > max_bytes:
        raise MessageTooLarge(f"{type(message).__name__} takes {len(body)} bytes; at most {max_bytes} may be sent")
    return body


class Codec(Generic[M]):
    """Reads the messages of one inbox, a union of Message structs or a single one, and nothing else."""

    def __init__(self, inbox: Any, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._types: tuple[type, ...] = get_args(inbox) or (inbox,)
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(inbox)
        self._checks = whole_columns(self._types)
        self._max_bytes = max_bytes

    def encode(self, message: M) -> bytes:
        """The message as msgpack. Raises BadBody if the inbox does not hold its type, and as `encode` does."""
        self._check(message)
        assert isinstance(message, Message)
        return encode(message, self._max_bytes)

    def decode(self, body: bytes) -> M:
        """The message in `body`. Raises BadBody or MessageTooLarge and nothing else, whatever the bytes are."""
        if len(body) > self._max_bytes:
            raise MessageTooLarge(f"a body of {len(body)} bytes; at most {self._max_bytes} are accepted")
        try:
            message = self._decoder.decode(body)
        except _UNDECODABLE as error:
            raise BadBody(f"a body of {len(body)} bytes that is no message: {error}") from None
        self._check(message)
        return message  # type: ignore[no-any-return]

    def read(self, body: Body) -> M:
        """The message that arrived, by whichever transport. Raises as `decode` does."""
        if isinstance(body, bytes):
            return self.decode(body)
        if body is None:
            raise BadBody("no body follows the header")
        self._check(body)
        return body  # type: ignore[return-value]

    def _check(self, message: Any) -> None:
        if type(message) not in self._types:
            names = ", ".join(kind.__name__ for kind in self._types)
            raise BadBody(f"{type(message).__name__} is not in the inbox: {names}")
        check = self._checks.get(type(message))
        if check is not None:
            check(message)
