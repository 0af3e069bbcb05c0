"""A listening socket that speaks TLS: accepts, shakes hands within bounds, and hands connections to the HTTP protocol.

asyncio's own server fixes its certificate, lets any number of handshakes wait, and drops what is no TLS without a word.
Here each handshake has the certificate of its moment and a time limit; when MAX_HANDSHAKES are under way, one more
ends the oldest, which has most likely stopped: clients that never finish keep nobody out. Who speaks plain HTTP is
told so.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable

import structlog

from actorlm.api.connection import refusal
from actorlm.api.tls import Tls
from actorlm.errors import BadRequest

HANDSHAKE_TIMEOUT_S = 10.0
SHUTDOWN_TIMEOUT_S = 5.0
MAX_HANDSHAKES = 512
ACCEPTED_AT_ONCE = 64
PAUSE_S = 0.1
"""After an accept that failed, for want of descriptors say."""
HANDSHAKE_RECORD = b"\x16"
"""The first byte of TLS. No HTTP method begins with it."""

log = structlog.get_logger(__name__)


class TlsListener:
    """Accepts on `sock` until `close`; `make` makes the protocol of a connection."""

    def __init__(self, sock: socket.socket, tls: Tls, make: Callable[[], asyncio.Protocol]) -> None:
        self._socket = sock
        self._tls = tls
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._resuming: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        self._accept_more()

    def close(self) -> None:
        """Accepts nothing more, and ends the handshakes that are under way."""
        self._loop.remove_reader(self._socket)
        if self._resuming is not None:
            self._resuming.cancel()
        for handshake in self._handshakes:
            handshake.cancel()

    async def wait_closed(self) -> None:
        """As asyncio's servers have it: there is nothing to wait for."""

    def _accept_more(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._socket)
                self._resuming = self._loop.call_later(PAUSE_S, self._accept_more)
                return
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        if len(self._handshakes) >= MAX_HANDSHAKES:
            next(iter(self._handshakes)).cancel()
        task = self._loop.create_task(self._shake_hands(connection))
        self._handshakes[task] = None
        task.add_done_callback(lambda ended: self._handshakes.pop(ended, None))

    async def _shake_hands(self, connection: socket.socket) -> None:
        """To their end: a connection, or none."""
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                first = await self._first_byte(connection)
                if first == HANDSHAKE_RECORD:
                    await self._connect(connection)
                    return  # the socket is the transport's now
            if first:
                _tell(connection)
        except OSError as error:  # so are errors of TLS and time limits
            log.debug("no handshake", reason=repr(error))
        except BaseException:
            connection.close()
            raise
        connection.close()

    async def _connect(self, connection: socket.socket) -> None:
        await self._loop.connect_accepted_socket(
            self._make,
            connection,
            ssl=self._tls.context,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
            ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        )

    async def _first_byte(self, connection: socket.socket) -> bytes:
        """The first byte, left where it is; none where there is no more."""
        while True:
            try:
                return connection.recv(1, socket.MSG_PEEK)
            except (BlockingIOError, InterruptedError):
                await self._readable(connection)

    async def _readable(self, connection: socket.socket) -> None:
        readable = self._loop.create_future()
        self._loop.add_reader(connection, _set, readable)
        try:
            await readable
        finally:
            self._loop.remove_reader(connection)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _tell(connection: socket.socket) -> None:
    """Answers plain HTTP, in so far as that is possible at once."""
    with contextlib.suppress(OSError):
        connection.recv(1 << 16)  # the answer would be dropped with what is not read
        connection.send(
            refusal(BadRequest("this port speaks TLS, and this is plain HTTP; begin the URL with https://"))
        )
