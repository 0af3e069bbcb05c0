"""A server that answers whatever a test says, piece by piece, on the event loop of the test."""

import asyncio
import json
from contextlib import asynccontextmanager
from typing import NamedTuple

ABORT = object()
"""A piece that resets the connection."""
CLOSE = object()
"""A piece that ends it in order."""
HANG = 3600.0


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict
    body: object


class OddServer:
    """`answer(asked)` returns pieces: bytes to send, seconds to wait, ABORT or CLOSE."""

    def __init__(self, answer):
        self.asked = []
        self.connections = 0
        self.left = asyncio.Event()
        self.port = None
        self._answer = answer

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        finally:
            writer.close()

    async def _exchange(self, reader, writer):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return False
        start, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = start.split(" ")
        self.asked.append(Asked(method, path, headers, json.loads(body) if body else None))
        for piece in self._answer(self.asked[-1]):
            if piece is CLOSE:
                return False
            if piece is ABORT:
                writer.transport.abort()
                return False
            if isinstance(piece, float):
                await self._wait(reader, piece)
            else:
                writer.write(piece)
                await writer.drain()
        return True

    async def _wait(self, reader, seconds):
        """Until then, or until the client leaves."""
        try:
            async with asyncio.timeout(seconds):
                assert await reader.read(1) == b"", "nothing is sent before an answer has ended"
                raise ConnectionResetError
        except TimeoutError:
            return


@asynccontextmanager
async def odd_server(answer):
    server = OddServer(answer)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


def whole(content, status="200 OK", content_type="application/json"):
    """An answer with a length."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (
        status.encode(),
        content_type.encode(),
        len(body),
        body,
    )


MODELS = whole({"object": "list", "data": [{"id": "odd", "object": "model"}]})
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data):
    """A chunk of HTTP."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(content):
    """A chunk of HTTP that is an event."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return chunk(b"data: %s\n\n" % data)


def said(text=None, finish=None, **more):
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}], **more}


def chatted(content=None, finish=None, **delta):
    return {"choices": [{"index": 0, "delta": {"content": content, **delta}, "finish_reason": finish}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 3}}


def good(*texts, usage=USAGE):
    """A stream without fault."""
    return [
        HEAD,
        *(event(said(text)) for text in texts),
        event(said("", "length")),
        *([event(usage)] if usage else []),
        event(b"[DONE]"),
        END,
    ]
