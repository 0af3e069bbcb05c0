"""A question that the HTTP server of this process is asked from within, to see whether it still answers.

It goes over a connection of its own, which needs no port: the listening socket is shared, so that a question from
outside may be answered by another process.
"""

import asyncio
import contextlib
import socket

from actorlm.api.server import HttpServer
from actorlm.messages.supervisor import Duty

QUESTION = b"HEAD /health HTTP/1.1\r\nhost: probe\r\n\r\n"
END = b"\r\n\r\n"


class Probe:
    """At most one question is open. `answered` counts answers, whatever they say: also a 503 shows that HTTP works."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._asking: asyncio.Task[None] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.answered = 0

    @property
    def is_open(self) -> bool:
        """Whether an answer is awaited."""
        return self._asking is not None and not self._asking.done()

    def duty(self) -> Duty:
        """Says how it stands, and asks again unless an answer is awaited. Not before the server has started."""
        duty = Duty("HTTP requests", int(self.is_open), self.answered)
        if self._server.is_serving and not self.is_open:
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        return duty

    async def _ask(self) -> None:
        with contextlib.suppress(
            OSError, EOFError
        ):  # no descriptor is left, or the server has closed an idle connection
            reader, writer = self._streams = self._streams or await self._connect()
            try:
                writer.write(QUESTION)
                await reader.readuntil(END)
            except (OSError, EOFError):
                writer.close()
                self._streams = None
                raise
            self.answered += 1

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        await self._server.adopt(theirs)
        return await asyncio.open_connection(sock=ours)
