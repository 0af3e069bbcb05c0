"""One HTTP/1.1 exchange on a connection of its own: the body is given on as it comes in.

httptools parses; nothing is copied or decoded between the socket and the receiver of a body. Connections are not used
again: servers close idle ones when they like, and a request that meets that would fail, or have to be sent twice.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

import httptools

from actorlm.remote.address import Address
from actorlm.remote.failure import Failure

Receive = Callable[[bytes], None]
"""Takes a piece of a body. What it raises ends the exchange."""

MAX_REFUSAL = 64 << 10
"""Bytes kept of a body that says why a request was refused."""


class Refusal(Exception):
    """The server answered with another status than 200; `body` is what it said."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class Connection(asyncio.Protocol):
    """Made by `connect`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._receive: Receive = _drop
        self._refused: bytearray | None = None
        self._framed = False
        self._open_ended = False
        """Whether the end of the connection is the end of the body."""

    async def exchange(self, request: bytes, receive: Receive) -> None:
        """Sends a request and gives on the body of its answer. Raises Failure, and Refusal unless the status is 200.

        Whatever comes of it, the connection is closed.
        """
        assert self._transport is not None
        self._receive = receive
        self._transport.write(request)
        try:
            await self._done
        finally:
            self._receive = _drop
            self._transport.abort()
        if self._refused is not None:
            raise Refusal(self._parser.get_status_code(), bytes(self._refused))

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        """Bytes, however the network cut them."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._end(cause if isinstance(cause, Exception) else error)
        except httptools.HttpParserError as error:
            self._end(Failure("not HTTP", str(error)))

    def connection_lost(self, error: Exception | None) -> None:
        """The server closed it, or we did."""
        if error is None and self._open_ended:
            self._end()
        else:
            self._end(Failure("connection lost", str(error) if error else "the server closed it"))

    # What httptools calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header of a response."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        """A body follows."""
        self._open_ended = not self._framed
        if self._parser.get_status_code() != 200:
            self._refused = bytearray()

    def on_body(self, data: bytes) -> None:
        """A piece of a body."""
        if self._refused is None:
            self._receive(data)
        elif len(self._refused) < MAX_REFUSAL:
            self._refused += data

    def on_message_complete(self) -> None:
        """The response is whole."""
        self._end()

    def _end(self, failure: Exception | None = None) -> None:
        """Once; what comes later changes nothing."""
        if self._done.done():
            return
        if failure is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(failure)


async def connect(address: Address, tls: ssl.SSLContext | None) -> Connection:
    """Raises Failure if nobody answers there."""
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(Connection, address.host, address.port, ssl=tls)
    except ConnectionRefusedError as error:
        raise Failure("connection refused", f"nothing listens at {address.netloc} ({error})") from None
    except OSError as error:
        raise Failure("cannot connect", f"{address.netloc}: {error}") from None
    return connection


def _drop(_: bytes) -> None:
    """Takes what comes after an exchange has ended."""
