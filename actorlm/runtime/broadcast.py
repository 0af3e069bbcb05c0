"""One sender, every subscriber, nothing lost silently: XPUB and SUB.

A publisher sends only to those who subscribe to its secret topic; any other subscription is read and never applied.
Frames: topic, header (the epoch and a consecutive number), body. Whoever misses a number learns it from the next
message, and a subscriber that does not read turns into an error of `publish`. Neither class needs an event loop; each
object belongs to the thread that made it.
"""

import secrets
import time
from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar, overload

import zmq

from actorlm.runtime.codec import MAX_MESSAGE_BYTES, Codec
from actorlm.runtime.curve import NO_KEYS, Gate, Security
from actorlm.runtime.errors import BadFrames, BroadcastFull, SequenceGap, UnexpectedKind, WrongEpoch
from actorlm.runtime.header import Header, Kind, check_version, parse
from actorlm.runtime.tally import Tally
from actorlm.runtime.zeromq import bind, connect, endpoint, open_socket
from actorlm.runtime.zeromq_socket import PlainSocket

M = TypeVar("M")

HIGH_WATER = 64
TOPIC_BYTES = 16
SUBSCRIPTIONS_PER_PUBLISH = 8192
"""ZeroMQ keeps what is not read, without a bound, once it looks at the socket: read faster than anybody sends."""


def draw_topic() -> bytes:
    """A topic that nobody guesses."""
    return secrets.token_bytes(TOPIC_BYTES)


class Publisher(Generic[M]):
    """The sending side. `sequence` is the number of the last message. Raises AddressUnusable if it cannot bind.

    Where there are keys only subscribers with one of the roles `admits` can connect.
    """

    def __init__(
        self,
        address: str,
        *,
        epoch: int,
        topic: bytes,
        inbox: Any,
        high_water: int = HIGH_WATER,
        max_bytes: int = MAX_MESSAGE_BYTES,
        clock: Callable[[], int] = time.time_ns,
        security: Security = NO_KEYS,
        admits: Collection[str] = (),
    ) -> None:
        assert 0 <= epoch < 2**32, f"epoch {epoch} does not fit the header's 32 bits"
        assert len(topic) >= TOPIC_BYTES, "a shorter topic could be guessed"
        self.epoch = epoch
        self.topic = topic
        self.sequence = 0
        self._codec = Codec[M](inbox, max_bytes)
        self._clock = clock
        self._context: zmq.Context[PlainSocket] = zmq.Context()
        self._socket = open_socket(self._context, zmq.XPUB, address, high_water, max_bytes)
        self._socket.set(zmq.XPUB_MANUAL, 1)
        self._socket.set(zmq.XPUB_NODROP, 1)
        self.tally = Tally(f"xpub {address}")
        if (keys := security.keys_for(address)) is not None:
            Gate(self._context, keys).guard(self._socket, self.tally, admits)
        bind(self._socket, address)
        self.address = endpoint(self._socket)
        self.tally.socket = f"xpub {self.address}"

    def publish(self, message: M) -> None:
        """Encodes once and hands the message to every subscriber's queue. Never waits.

        Raises BroadcastFull if one of the queues is full: then none has the message, and the epoch cannot go on.
        """
        self._apply_subscriptions()
        header = Header(Kind.BROADCAST, self.epoch, self.sequence + 1, self._clock())
        frames = (self.topic, header.encode(), self._codec.encode(message))
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            raise BroadcastFull(
                f"a subscriber of {self.address} does not read: message {self.sequence + 1} cannot leave"
            ) from None
        self.sequence += 1
        self.tally.sent += 1

    def close(self, flush_s: float = 0.0) -> None:
        """Closes; waits up to `flush_s` seconds for what was published to leave."""
        self._socket.close(linger=round(1000 * flush_s))
        self._context.term()

    def _apply_subscriptions(self) -> None:
        """Reads what subscribers ask for. In manual mode a request takes effect only through the `set` below."""
        wanted = {b"\1" + self.topic: zmq.SUBSCRIBE, b"\0" + self.topic: zmq.UNSUBSCRIBE}
        for _ in range(SUBSCRIPTIONS_PER_PUBLISH):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.tally.received += 1
            option = wanted.get(frames[0]) if len(frames) == 1 else None
            if option is None:
                self.tally.drop(UnexpectedKind("a subscription to another topic than the epoch's"))
            else:
                self._socket.set(option, self.topic)


class Subscriber(Generic[M]):
    """The receiving side, for a thread that waits. Raises AddressUnusable if the address is no address."""

    def __init__(
        self,
        address: str,
        *,
        epoch: int,
        topic: bytes,
        inbox: Any,
        high_water: int = HIGH_WATER,
        max_bytes: int = MAX_MESSAGE_BYTES,
        security: Security = NO_KEYS,
        server_role: str = "",
    ) -> None:
        self.address = address
        self.epoch = epoch
        self.sequence = 0
        self._topic = topic
        self._codec = Codec[M](inbox, max_bytes)
        self._context: zmq.Context[PlainSocket] = zmq.Context()
        self._socket = open_socket(self._context, zmq.SUB, address, high_water, max_bytes)
        security.secure_client(self._socket, address, server_role)
        self._socket.set(zmq.SUBSCRIBE, topic)
        connect(self._socket, address)

    @overload
    def receive(self) -> M: ...

    @overload
    def receive(self, timeout_s: float) -> M | None: ...

    def receive(self, timeout_s: float | None = None) -> M | None:
        """The next message, for which it waits; or None if none came within `timeout_s`.

        Raises SequenceGap, WrongEpoch, or another ProtocolError for what no publisher of ours sends. After any of
        these the subscriber must not go on: it reports, and its group begins a new epoch.
        """
        if timeout_s is not None and not self._socket.poll(round(1000 * timeout_s)):
            return None
        frames = self._socket.recv_multipart()
        if len(frames) != 3 or frames[0] != self._topic:
            raise BadFrames(f"{len(frames)} frames; a broadcast has a topic, a header and a body")
        self._advance(parse(frames[1]))
        return self._codec.decode(frames[2])

    def close(self) -> None:
        """Closes."""
        self._socket.close()
        self._context.term()

    def _advance(self, header: Header) -> None:
        """The first message may have any number: a subscriber that joins late begins with what reaches it."""
        check_version(header)
        if header.kind is not Kind.BROADCAST:
            raise UnexpectedKind(f"a subscriber was sent {header.kind.name}")
        if header.session != self.epoch:
            raise WrongEpoch(self.epoch, header.session)
        if self.sequence and header.sequence != self.sequence + 1:
            raise SequenceGap(self.address, self.sequence + 1, header.sequence)
        self.sequence = header.sequence
