"""uvicorn in a running event loop, on a socket that somebody else has bound: no signals, no access log.

What becomes of a connection is told in `connection.py`.
"""

import asyncio
import contextlib
import resource
import socket
from collections.abc import Iterator
from typing import Any, cast

import structlog
import uvicorn
from litestar.types import ASGIApp

from actorlm.api.connection import LimitedProtocol, Shared
from actorlm.api.tls import Tls
from actorlm.api.tls_listener import TlsListener

MAX_CONNECTIONS = 8192
KEEP_ALIVE_S = 75
BACKLOG = 4096
POLL_S = 0.01
LAST_WORDS_S = 0.5
"""How long cancelled answers may take to say that they are."""
OTHER_DESCRIPTORS = 1024
"""Beside connections that are served: handshakes, those that are refused, and all that is not HTTP."""

log = structlog.get_logger(__name__)


def allow_connections(count: int) -> None:
    """Has this process open so many connections, as far as the system lets it; says so where it does not."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + OTHER_DESCRIPTORS
    if most != resource.RLIM_INFINITY and wanted > most:
        log.warning("descriptors allow fewer connections", max_connections=count, descriptors=most)
        wanted = most
    if wanted > allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


class HttpServer:
    """Serves `app` on `sock` from `start` to `stop`, and closes `sock`. Speaks TLS if there is any."""

    def __init__(
        self, app: ASGIApp, sock: socket.socket, tls: Tls | None = None, max_connections: int = MAX_CONNECTIONS
    ) -> None:
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
        self._server = _Server(config, sock, tls, max_connections)
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
        connection.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(self._server.connection, connection)

    async def stop(self, grace_s: float, linger_s: float = 0.0) -> None:
        """Accepts nothing more, and cancels what is not answered within `grace_s` seconds; its clients are told.

        A connection that rests may have a request on its way: it gets `linger_s` of them for that one.
        """
        if self._serving is None:
            self._socket.close()
            return
        self._server.config.timeout_graceful_shutdown = cast("int", grace_s)  # only ever handed to asyncio.wait_for
        self._server.leave(linger_s)
        await self._serving
        if cancelled := list(self._server.server_state.tasks):
            await asyncio.wait(cancelled, timeout=LAST_WORDS_S)


class _Server(uvicorn.Server):
    """Accepts in its own way, and waits for its end, where uvicorn wakes ten times a second to look for it."""

    def __init__(self, config: uvicorn.Config, sock: socket.socket, tls: Tls | None, max_connections: int) -> None:
        super().__init__(config)
        self.server_state: Shared = Shared()
        self._socket = sock
        self._tls = tls
        self._max_connections = max_connections
        self._leaving = asyncio.Event()

    def leave(self, linger_s: float) -> None:
        """Begins the end."""
        self.server_state.linger_s = linger_s
        self.should_exit = True
        self._leaving.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to accept."""
        if self._tls is not None:
            self._socket.listen(BACKLOG)
            listener: Any = TlsListener(self._socket, self._tls, self.connection)
        else:
            loop = asyncio.get_running_loop()
            listener = await loop.create_server(self.connection, sock=self._socket, backlog=BACKLOG)
        self.servers = [listener]
        self.started = True

    def connection(self) -> LimitedProtocol:
        """The protocol of a new connection."""
        return LimitedProtocol(
            max_connections=self._max_connections, config=self.config, server_state=self.server_state, app_state={}
        )

    async def main_loop(self) -> None:
        """See `uvicorn.Server`."""
        await self._leaving.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the actor around us."""
        yield
