"""One HTTP connection, within limits: of heads in size and time, of requests that wait, of connections.

What uvicorn leaves open is closed here, and what is no HTTP gets an error of our shape. A connection beyond the most
that a process serves is answered 503 on its first request, which needs no reading; liveness is answered all the same,
because a busy service is a healthy one. Beyond SURPLUS more of them nothing is read at all.
"""

import asyncio
import functools
import sys
import time
from asyncio import TimerHandle
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import httptools
import msgspec
from litestar.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from actorlm.api.auth import is_liveness
from actorlm.api.errors import (
    HeadersTooLarge,
    RequestTimeout,
    TargetTooLong,
    TooManyConnections,
    describe,
    headers_of,
    send_error,
)
from actorlm.errors import ActorlmError, BadRequest

MAX_HEAD_BYTES = 65_536
MAX_TARGET_BYTES = 8192
"""Of the path and query in a request's first line."""
MAX_HEADERS = 128
HEAD_TIMEOUT_S = 30.0
LEFTOVER_TIMEOUT_S = 15.0
"""How long the rest of a body may take that nobody waits for, because its request is answered."""
MAX_PIPELINED = 16
SURPLUS = 64
FRAMING = (b"content-length", b"transfer-encoding")


def refusal(error: ActorlmError) -> bytes:
    """The whole answer to what never became a request; the connection is closed after it."""
    body = msgspec.json.encode(describe(error))
    headers = {"content-type": "application/json", "content-length": str(len(body))} | headers_of(error)
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in (headers | {"connection": "close"}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Shared(ServerState):
    """What the connections of a server have in common. They are to end once `linger_s` is set."""

    linger_s: float | None = None


class LimitedProtocol(HttpToolsProtocol):
    """A connection of at most `max_connections`.

    uvicorn tells only the last of several pipelined requests that the client has left, and stops reading, so that it
    may never notice. Here all of them are told, and up to MAX_PIPELINED do not stop the reading.
    """

    _open: tuple[RequestResponseCycle, ...] = ()
    _timer: TimerHandle | None = None
    _head_bytes = 0
    _headers = 0
    _in_head = True
    _in_body = False
    _data = b""
    _left = b""
    _continues = False
    _fault: ActorlmError | None = None
    _is_surplus = False

    def __init__(self, *, max_connections: int, **parts: Any) -> None:
        super().__init__(**parts)
        self._max_connections = max_connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts to wait for the first head, if there is room."""
        super().connection_made(transport)
        beyond = len(self.connections) - self._max_connections
        if beyond > SURPLUS:
            self._refuse(too_many(self._max_connections))
            return
        if beyond > 0:
            self._is_surplus = True
            self.app = functools.partial(answer_surplus, self.app, self._max_connections)
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
            self._refuse(HeadersTooLarge(f"the head of the request exceeds {MAX_HEAD_BYTES} bytes; send fewer headers"))
            return
        self._head_bytes += len(data)
        while data:
            self._data, self._left = data, b""
            super().data_received(data)
            data = self._left
        self._data = b""
        if self._timer is None and self.timeout_keep_alive_task is None and not self._is_busy:
            self._await_head()  # empty lines between requests have ended uvicorn's wait, and begin none

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._await_head()

    def on_url(self, url: bytes) -> None:
        """A piece of the path and the query."""
        super().on_url(url)
        if len(self.url) > MAX_TARGET_BYTES:
            self._fault = TargetTooLong(f"path and query exceed {MAX_TARGET_BYTES} bytes; shorten them")
            raise self._fault

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; what comes after a body is left out, because nobody looks at it."""
        if not self._in_head:
            return
        self._headers += 1
        if self._headers > MAX_HEADERS:
            self._fault = HeadersTooLarge(f"the request has more than {MAX_HEADERS} headers; send fewer")
            raise self._fault
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
        self._in_body = True
        self.server_state.default_headers = _dated(int(time.time()))
        super().on_headers_complete()
        self.cycle.keep_alive = self.cycle.keep_alive and not self._is_surplus and self._linger_s is None
        self._open = (*(cycle for cycle in self._open if not cycle.response_complete), self.cycle)
        if 1 < len(self._open) <= MAX_PIPELINED:
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        """A body ends; that of a request for an upgrade has not begun."""
        if not self.parser.should_upgrade():
            self._in_body = False
            self._stop_awaiting()
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer ends; what is left of a body that nobody has read must still come to an end."""
        super().on_response_complete()
        if self._in_body and not self._is_busy and not self.transport.is_closing():
            self._await(LEFTOVER_TIMEOUT_S, self.transport.close)

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

    @property
    def _linger_s(self) -> float | None:
        return self.server_state.linger_s if isinstance(self.server_state, Shared) else None

    def shutdown(self) -> None:
        """Ends with the answer that is under way, or with the one to a request that comes soon."""
        if self._linger_s and (self.cycle is None or self.cycle.response_complete):
            self.loop.call_later(self._linger_s, super().shutdown)
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """What the parser does not take."""
        self._refuse(self._fault or BadRequest(msg))

    def _refuse(self, error: ActorlmError) -> None:
        """Refuses what is no request, and closes."""
        self.transport.write(refusal(error))
        self.transport.close()

    @property
    def _is_busy(self) -> bool:
        """Whether a request is not answered."""
        return any(not cycle.response_complete for cycle in self._open)

    def _await_head(self) -> None:
        self._in_head, self._head_bytes, self._headers = True, 0, 0
        self._await(HEAD_TIMEOUT_S, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._head_bytes:
            self._refuse(RequestTimeout(f"the head of the request did not arrive within {HEAD_TIMEOUT_S:g} s"))
        else:
            self.transport.close()

    def _await(self, seconds: float, late: Any) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, late)

    def _stop_awaiting(self) -> None:
        self._in_head = False
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def too_many(limit: int) -> TooManyConnections:
    """The error for one connection more."""
    return TooManyConnections(
        f"this process serves {limit} connections (max_connections); try again later, and use connections for several"
        " requests"
    )


async def answer_surplus(app: ASGIApp, limit: int, scope: Scope, receive: Receive, send: Send) -> None:
    """Liveness as ever; anything else is refused."""
    if is_liveness(scope):
        await app(scope, receive, send)
    else:
        await send_error(too_many(limit), send)


@functools.lru_cache(maxsize=1)
def _dated(second: int) -> list[tuple[bytes, bytes]]:
    """The headers of every response that begins in this second."""
    return [(b"date", formatdate(second, usegmt=True).encode())]
