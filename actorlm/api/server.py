"""uvicorn in a running event loop, on a socket that somebody else has bound: no signals, no access log.

What uvicorn leaves open is closed here: the head of a request is limited in size and in time, and what is no HTTP gets
an error of our shape.
"""

import asyncio
import contextlib
import functools
import socket
import sys
import time
from asyncio import TimerHandle
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any, cast

import httptools
import msgspec
import uvicorn
from litestar.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from actorlm.api.errors import describe
from actorlm.errors import BadRequest

MAX_HEAD_BYTES = 65_536
HEAD_TIMEOUT_S = 30.0
MAX_PIPELINED = 16
KEEP_ALIVE_S = 75
BACKLOG = 4096
POLL_S = 0.01
FRAMING = (b"content-length", b"transfer-encoding")
LAST_WORDS_S = 0.5
"""How long cancelled answers may take to say that they are."""
REFUSAL = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
)


class HttpServer:
    """Serves `app` on `sock` from `start` to `stop`, and closes `sock`."""

    def __init__(self, app: ASGIApp, sock: socket.socket) -> None:
        config = uvicorn.Config(
            cast("Any", app),
            http=LimitedProtocol,
            loop="none",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=BACKLOG,
        )
        self._server = _Server(config)
        self._socket = sock
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when connections are accepted. Raises what keeps it from that."""
        self._serving = asyncio.get_running_loop().create_task(self._server.serve([self._socket]))
        while not self._server.started:
            if self._serving.done():
                await self._serving
            await asyncio.sleep(POLL_S)

    @property
    def is_serving(self) -> bool:
        """Whether connections are accepted."""
        return self._server.started and not self._server.should_exit

    async def adopt(self, connection: socket.socket) -> None:
        """Serves a connection that somebody else has made."""

        def protocol() -> LimitedProtocol:
            server = self._server
            return LimitedProtocol(server.config, server.server_state, server.lifespan.state)

        connection.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)

    async def stop(self, grace_s: float) -> None:
        """Accepts nothing more, and cancels what is not answered within `grace_s` seconds; its clients are told."""
        if self._serving is None:
            self._socket.close()
            return
        self._server.config.timeout_graceful_shutdown = cast("int", grace_s)  # only ever handed to asyncio.wait_for
        self._server.leave()
        await self._serving
        if cancelled := list(self._server.server_state.tasks):
            await asyncio.wait(cancelled, timeout=LAST_WORDS_S)


class _Server(uvicorn.Server):
    """Waits for its end, where uvicorn wakes ten times a second to look for it and to write down the date."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Begins the end."""
        self.should_exit = True
        self._leaving.set()

    async def main_loop(self) -> None:
        """See `uvicorn.Server`."""
        await self._leaving.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the actor around us."""
        yield


class LimitedProtocol(HttpToolsProtocol):
    """A connection whose request heads are limited, and whose refusals are JSON.

    uvicorn tells only the last of several pipelined requests that the client has left, and stops reading, so that it
    may never notice. Here all of them are told, and up to MAX_PIPELINED do not stop the reading.
    """

    _open: tuple[RequestResponseCycle, ...] = ()
    _head_timer: TimerHandle | None = None
    _head_bytes = 0
    _in_head = True
    _data = b""
    _left = b""
    _continues = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts to wait for the first head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops waiting, and tells every request that is not answered."""
        self._stop_awaiting()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn keeps it after a reset, and with it all of the request
        for cycle in self._open:
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Counts what belongs to a head, or to what surrounds the pieces of a body, and is kept by the parser."""
        if self._head_bytes > MAX_HEAD_BYTES:
            self.send_400_response(f"the head of the request exceeds {MAX_HEAD_BYTES} bytes")
            return
        self._head_bytes += len(data)
        while data:
            self._data, self._left = data, b""
            super().data_received(data)
            data = self._left
        self._data = b""

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._stop_awaiting()
        self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; what comes after a body is left out, because nobody looks at it."""
        if self._in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """A piece of a body, which has a limit of its own."""
        self._head_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """A head ends."""
        self._stop_awaiting()
        if self._continues:
            return
        self.server_state.default_headers = _dated(int(time.time()))
        super().on_headers_complete()
        self._open = (*(cycle for cycle in self._open if not cycle.response_complete), self.cycle)
        if 1 < len(self._open) <= MAX_PIPELINED:
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        """A body ends; that of a request for an upgrade has not begun."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Goes on with the request as if it had not asked for an upgrade, as Java's client does with every request.

        The parser took what follows the head for another protocol; a new one is told where in the request it is.
        """
        upgrade = sys.exception()
        assert isinstance(upgrade, httptools.HttpParserUpgrade)
        self._left = self._data[upgrade.args[0] :]
        framing = [b"%b: %b\r\n" % header for header in self.headers if header[0] in FRAMING]
        self.parser, self._continues = httptools.HttpRequestParser(self), True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(framing) + b"\r\n")
        self._continues = False

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no HTTP request, and closes."""
        body = msgspec.json.encode(describe(BadRequest(msg)))
        self.transport.write(REFUSAL % len(body) + body)
        self.transport.close()

    def _await_head(self) -> None:
        self._in_head, self._head_bytes = True, 0
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _stop_awaiting(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


@functools.lru_cache(maxsize=1)
def _dated(second: int) -> list[tuple[bytes, bytes]]:
    """The headers of every response that begins in this second."""
    return [(b"date", formatdate(second, usegmt=True).encode())]
