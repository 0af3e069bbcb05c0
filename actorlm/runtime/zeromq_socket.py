"""ZeroMQ sockets in an event loop that knows nothing of ZeroMQ.

A socket's descriptor only signals that something happened since it was last looked at. So whoever wakes up reads until
nothing is left, and whoever has sent looks again, because sending takes the signal of what arrived meanwhile with
it. While the mailbox is full the descriptor is not watched at all: it would stay readable and keep the loop busy.
"""

import asyncio
import contextlib

import zmq
from zmq.utils.monitor import recv_monitor_message

from actorlm.runtime.codec import encode
from actorlm.runtime.errors import BadFrames, PeerFull, PeerUnknown
from actorlm.runtime.header import Header, parse
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.reading import Reader
from actorlm.runtime.tally import Tally
from actorlm.runtime.transport import Connection, Receive, Refusal
from actorlm.wire import Message

PlainSocket = zmq.Socket[bytes]

USER_ID = "User-Id"
RETRY_S = 1.0
TOLD = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
MISMATCH = zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH


class SendingSocket:
    """Implements `transport.Socket` for a socket that only sends, and the sending of the others."""

    def __init__(self, socket: PlainSocket, tally: Tally, max_bytes: int) -> None:
        self.address = tally.socket.partition(" ")[2]
        self._socket = socket
        self._tally = tally
        self._max_bytes = max_bytes

    def send(self, header: Header, message: Message | None, route: bytes = b"") -> None:
        """See `transport.Socket`."""
        frames = [route] if route else []
        frames.append(header.encode())
        if message is not None:
            frames.append(encode(message, self._max_bytes))
        try:
            self._send(frames)
        except zmq.Again:
            raise PeerFull(f"the queue of {self._tally.socket} {_to(route)}is full") from None
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            raise PeerUnknown(f"nobody is connected to {self._tally.socket} {_to(route)}") from None
        self._tally.sent += 1

    def _send(self, frames: list[bytes]) -> None:
        """Sends, and looks twice before it fails: the news of room may be waiting, and asking for EVENTS reads it."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            self._socket.get(zmq.EVENTS)
            self._socket.send_multipart(frames, zmq.NOBLOCK)

    def close(self, flush_s: float) -> None:
        """See `transport.Socket`."""
        self._socket.close(linger=round(1000 * flush_s))


class ReadingSocket(SendingSocket):
    """A socket that the event loop reads. A `routed` one, a router, gives the route of each message.

    One that `has_keys` says whose each message is.
    """

    def __init__(
        self,
        socket: PlainSocket,
        tally: Tally,
        max_bytes: int,
        *,
        mailbox: Mailbox[object],
        receive: Receive,
        routed: bool = False,
        has_keys: bool = False,
        monitor: "Monitor | None" = None,
    ) -> None:
        super().__init__(socket, tally, max_bytes)
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._routed = routed
        self._has_keys = has_keys
        self._monitor = monitor
        descriptor = socket.get(zmq.FD)
        assert isinstance(descriptor, int)
        self._descriptor = descriptor
        self._reader = Reader(mailbox, tally, self._take, self._watch)
        self._watch(True)
        self._reader.schedule()  # what arrived before the descriptor was watched signals no more

    def send(self, header: Header, message: Message | None, route: bytes = b"") -> None:
        """See `transport.Socket`."""
        try:
            super().send(header, message, route)
        except PeerFull:
            if self._monitor is not None:
                self._monitor.look()  # a peer that is gone has no queue: whoever sends learns which of the two it is
            raise
        finally:
            if int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
                self._reader.schedule()

    def close(self, flush_s: float) -> None:
        """See `transport.Socket`."""
        if self._monitor is not None:
            self._monitor.close()
        self._reader.close()
        self._watch(False)
        super().close(flush_s)

    def _watch(self, wanted: bool) -> None:
        if wanted:
            self._loop.add_reader(self._descriptor, self._reader.turn)
        else:
            self._loop.remove_reader(self._descriptor)

    def _take(self) -> bool:
        key_role = ""
        try:
            if self._has_keys:
                first = self._socket.recv(zmq.NOBLOCK, copy=False)
                key_role = str(first.get(USER_ID))
                frames = [first.bytes, *self._socket.recv_multipart(zmq.NOBLOCK)]
            else:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._tally.received += 1
        self._pass_on(frames, key_role)
        return True

    def _pass_on(self, frames: list[bytes], key_role: str) -> None:
        route = frames.pop(0) if self._routed else b""
        if not 1 <= len(frames) <= 2:
            raise BadFrames(f"{len(frames)} frames; a message has a header and at most one body")
        self._receive(route, parse(frames[0]), frames[1] if len(frames) == 2 else None, key_role)


class Monitor:
    """Tells when `socket` is connected, when it is not any more, and when the other side refuses its key.

    Made before the socket begins to connect. ZeroMQ gives up where it is refused, so the monitor goes on trying.
    """

    def __init__(self, socket: PlainSocket, address: str, connection: Connection, refusal: Refusal) -> None:
        self._socket = socket
        self._address = address
        self._connection = connection
        self._refusal = refusal
        self._events = socket.get_monitor_socket(TOLD)
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._loop.add_reader(int(self._events.get(zmq.FD)), self.look)
        self.look()  # the descriptor signals nothing to a reader that has never found the socket empty

    def close(self) -> None:
        """Ends with the socket."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(int(self._events.get(zmq.FD)))
        self._socket.disable_monitor()
        self._events.close()

    def look(self) -> None:
        """Tells now what has happened already."""
        while not self._events.closed and self._events.poll(0):
            said = recv_monitor_message(self._events, zmq.NOBLOCK)
            match said["event"]:
                case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._connection(True)
                case zmq.EVENT_DISCONNECTED:
                    self._connection(False)
                case failed:
                    self._retry = self._loop.call_later(RETRY_S, self._connect_again)
                    self._tell_why(failed, said["value"])

    def _tell_why(self, failed: int, detail: int) -> None:
        if failed == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._refusal(f"{self._address} refuses our key: it does not know it, or admits no key of our role")
        elif detail == MISMATCH:
            self._refusal(f"of us and {self._address} one has keys and the other has none; give both sides --keys")

    def _connect_again(self) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disconnect(self._address)
        self._socket.connect(self._address)


def _to(route: bytes) -> str:
    return f"towards {route.decode(errors='replace')} " if route else ""
