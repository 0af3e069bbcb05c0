"""ZeroMQ sockets in an event loop that knows nothing of ZeroMQ.

A socket's descriptor only signals that something happened since it was last looked at. So whoever wakes up reads until
nothing is left, and whoever has sent looks again, because sending takes the signal of what arrived meanwhile with
it. While the mailbox is full the descriptor is not watched at all: it would stay readable and keep the loop busy.
"""

import asyncio

import zmq
from zmq.utils.monitor import recv_monitor_message

from actorlm.runtime.codec import encode
from actorlm.runtime.errors import BadFrames, PeerFull, PeerUnknown
from actorlm.runtime.header import Header, parse
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.reading import Reader
from actorlm.runtime.tally import Tally
from actorlm.runtime.transport import Connection, Receive
from actorlm.wire import Message

PlainSocket = zmq.Socket[bytes]


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
    """A socket that the event loop reads. A `routed` one, a router, gives the route of each message."""

    def __init__(
        self,
        socket: PlainSocket,
        tally: Tally,
        max_bytes: int,
        *,
        mailbox: Mailbox[object],
        receive: Receive,
        routed: bool = False,
        monitor: "Monitor | None" = None,
    ) -> None:
        super().__init__(socket, tally, max_bytes)
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._routed = routed
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
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._tally.received += 1
        self._pass_on(frames)
        return True

    def _pass_on(self, frames: list[bytes]) -> None:
        route = frames.pop(0) if self._routed else b""
        if not 1 <= len(frames) <= 2:
            raise BadFrames(f"{len(frames)} frames; a message has a header and at most one body")
        self._receive(route, parse(frames[0]), frames[1] if len(frames) == 2 else None)


class Monitor:
    """Tells when `socket` is connected and when it is not any more. Made before it begins to connect."""

    def __init__(self, socket: PlainSocket, connection: Connection) -> None:
        self._socket = socket
        self._connection = connection
        self._events = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(int(self._events.get(zmq.FD)), self.look)
        self.look()  # the descriptor signals nothing to a reader that has never found the socket empty

    def close(self) -> None:
        """Ends with the socket."""
        self._loop.remove_reader(int(self._events.get(zmq.FD)))
        self._socket.disable_monitor()
        self._events.close()

    def look(self) -> None:
        """Tells now what has happened already."""
        while self._events.poll(0):
            event = recv_monitor_message(self._events, zmq.NOBLOCK)["event"]
            self._connection(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)


def _to(route: bytes) -> str:
    return f"towards {route.decode(errors='replace')} " if route else ""
