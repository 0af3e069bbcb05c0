"""The network over ZeroMQ: `ipc://` on one host, `tcp://` between hosts. Plain sockets in the event loop.

What the options are for: MANDATORY makes an unroutable message an error; HANDOVER lets a peer that reconnects take
over its own route; IMMEDIATE keeps a dealer from queueing for a server that is not there, and a monitor tells it when
one comes or is lost, which sending alone cannot tell from a queue that is full; MAXMSGSIZE ends the connection of
whoever sends more; LINGER 0 leaves nothing behind but what `close` grants. A host that vanished is found by TCP's
keepalive and not by ZeroMQ's heartbeats: those go unread, and end the connection with all that is in it, where a full
mailbox has paused its port for long.
"""

import asyncio
from collections.abc import Callable, Collection

import zmq

from actorlm.errors import ConfigError
from actorlm.runtime.codec import MAX_MESSAGE_BYTES
from actorlm.runtime.curve import NO_KEYS, Gate, Security
from actorlm.runtime.errors import AddressUnusable
from actorlm.runtime.fingerprint import Fingerprint
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.ports import TransportNetwork
from actorlm.runtime.tally import Tallies, Tally
from actorlm.runtime.transport import Connection, Receive, Refusal
from actorlm.runtime.zeromq_socket import Monitor, PlainSocket, ReadingSocket, SendingSocket

HIGH_WATER = 1000
KEEPALIVE_S = 5
LONGEST_RECONNECT_MS = 1_000
HANDSHAKE_MS = 10_000
CONNECT_MS = 3_000
"""Where packets are dropped, the system itself would try for minutes, with pauses that last when they no longer are."""
SCHEMES = ("ipc://", "tcp://")


class ZeroMQNetwork(TransportNetwork):
    """See `network.Network`. `high_water` bounds each peer's queue, in messages, on each side of a connection."""

    def __init__(
        self,
        protocol: Fingerprint,
        *,
        high_water: int = HIGH_WATER,
        max_bytes: int = MAX_MESSAGE_BYTES,
        security: Security = NO_KEYS,
    ) -> None:
        super().__init__(protocol, ZeroMQTransport(high_water, max_bytes, security))


class ZeroMQTransport:
    """Implements `transport.Transport` with one context of its own."""

    def __init__(self, high_water: int, max_bytes: int, security: Security = NO_KEYS) -> None:
        self._tallies = Tallies()
        self._high_water = high_water
        self._max_bytes = max_bytes
        self._security = security
        self._context: zmq.Context[PlainSocket] = zmq.Context()
        self._gate: Gate | None = None

    @property
    def tallies(self) -> Collection[Tally]:
        """See `transport.Transport`."""
        return self._tallies.all()

    def listen(
        self, address: str, mailbox: Mailbox[object], receive: Receive, admits: Collection[str] = ()
    ) -> ReadingSocket:
        """See `transport.Transport`."""
        socket = self._socket(zmq.ROUTER, address)
        socket.set(zmq.ROUTER_MANDATORY, 1)
        socket.set(zmq.ROUTER_HANDOVER, 1)
        has_keys = self._bind("router", socket, address, admits)
        return ReadingSocket(
            socket,
            self._tally("router", socket),
            self._max_bytes,
            mailbox=mailbox,
            receive=receive,
            routed=True,
            has_keys=has_keys,
        )

    def dial(
        self,
        address: str,
        route: bytes,
        mailbox: Mailbox[object],
        receive: Receive,
        connection: Connection,
        *,
        refusal: Refusal,
        server_role: str,
    ) -> ReadingSocket:
        """See `transport.Transport`."""
        socket = self._client(zmq.DEALER, address, server_role)
        socket.set(zmq.ROUTING_ID, route)
        socket.set(zmq.IMMEDIATE, 1)
        monitor = Monitor(socket, address, connection, refusal)
        connect(socket, address)
        tally = self._tally("dealer", socket)
        return ReadingSocket(socket, tally, self._max_bytes, mailbox=mailbox, receive=receive, monitor=monitor)

    def pull(
        self, address: str, mailbox: Mailbox[object], receive: Receive, admits: Collection[str] = ()
    ) -> ReadingSocket:
        """See `transport.Transport`."""
        socket = self._socket(zmq.PULL, address)
        self._bind("pull", socket, address, admits)
        return ReadingSocket(socket, self._tally("pull", socket), self._max_bytes, mailbox=mailbox, receive=receive)

    def push(self, address: str, server_role: str = "") -> SendingSocket:
        """See `transport.Transport`."""
        socket = self._client(zmq.PUSH, address, server_role)
        connect(socket, address)
        return SendingSocket(socket, self._tally("push", socket), self._max_bytes)

    async def close(self) -> None:
        """See `transport.Transport`. Waits in a thread, because the context ends only when its sockets have."""
        await asyncio.to_thread(self._context.term)

    def _bind(self, kind: str, socket: PlainSocket, address: str, admits: Collection[str]) -> bool:
        """Binds; returns whether whoever connects needs a key."""
        try:
            keys = self._security.keys_for(address)
        except ConfigError:
            socket.close()
            raise
        if keys is not None:
            self._gate = self._gate or Gate(self._context, keys)
            self._gate.guard(socket, self._tallies.of(kind, address), admits)
        bind(socket, address)
        return keys is not None

    def _client(self, kind: int, address: str, server_role: str) -> PlainSocket:
        """Raises ConfigError for an address that needs keys which are not there; no socket is left then."""
        socket = self._socket(kind, address)
        try:
            self._security.secure_client(socket, address, server_role)
        except ConfigError:
            socket.close()
            raise
        return socket

    def _socket(self, kind: int, address: str) -> PlainSocket:
        return open_socket(self._context, kind, address, self._high_water, self._max_bytes)

    def _tally(self, kind: str, socket: PlainSocket) -> Tally:
        return self._tallies.of(kind, endpoint(socket))


def open_socket(
    context: "zmq.Context[PlainSocket]", kind: int, address: str, high_water: int, max_bytes: int
) -> PlainSocket:
    """A socket with the options that all sockets of the plane share. `address` decides on those for the network."""
    if not address.startswith(SCHEMES):
        raise AddressUnusable(f"{address} is no address; it begins with ipc:// or tcp://")
    socket = context.socket(kind)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.MAXMSGSIZE, max_bytes)
    socket.set(zmq.SNDHWM, high_water)
    socket.set(zmq.RCVHWM, high_water)
    socket.set(zmq.RECONNECT_IVL_MAX, LONGEST_RECONNECT_MS)
    if address.startswith("tcp:"):
        socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.set(zmq.CONNECT_TIMEOUT, CONNECT_MS)
        socket.set(zmq.IPV6, int("[" in address))
        socket.set(zmq.TCP_KEEPALIVE, 1)
        socket.set(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_S)
        socket.set(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_S)
        socket.set(zmq.TCP_KEEPALIVE_CNT, 3)
    return socket


def bind(socket: PlainSocket, address: str) -> None:
    """Binds, or closes the socket and raises AddressUnusable."""
    _attach(socket, socket.bind, address, "bound")


def connect(socket: PlainSocket, address: str) -> None:
    """Begins to connect, or closes the socket and raises AddressUnusable."""
    _attach(socket, socket.connect, address, "connected to")


def endpoint(socket: PlainSocket) -> str:
    """The address that the socket was bound or connected to, with the port that the system chose."""
    last = socket.get(zmq.LAST_ENDPOINT)
    assert isinstance(last, bytes)
    return last.rstrip(b"\0").decode()


def _attach(socket: PlainSocket, attach: Callable[[str], object], address: str, what: str) -> None:
    try:
        attach(address)
    except zmq.ZMQError as error:
        socket.close()
        raise AddressUnusable(f"{address} cannot be {what}: {error}") from error
