"""One request on a connection of its own, seen as bytes, that can be left in any way at any moment."""

import json
import socket
import struct
from http.client import HTTPConnection
from itertools import islice

PATHS = ["/v1/completions", "/v1/chat/completions"]


def body_of(tree, path, **fields):
    """A request to either route: `prompt` is the only turn of a chat. Endless unless `fields` say otherwise."""
    prompt = fields.pop("prompt", "Hi")
    about = {"prompt": prompt} if path == PATHS[0] else {"messages": [{"role": "user", "content": prompt}]}
    return {"model": tree.model, **about} | fields


def endless(tree, path=PATHS[0], **fields):
    """A request that would go on for long."""
    return body_of(tree, path, **{"max_tokens": 4000, "ignore_eos": True} | fields)


class Exchange:
    """Sends a request at once. `response` waits for the head of the answer."""

    def __init__(self, tree, path, body, headers=None, port=None):
        self._connection = HTTPConnection("127.0.0.1", port or tree.port, timeout=60)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._connection.request("POST", path, data, {"content-type": "application/json"} | (headers or {}))
        self._sock = self._connection.sock
        self._response = None

    @property
    def response(self):
        if self._response is None:
            self._response = self._connection.getresponse()
        return self._response

    def raw_events(self):
        """Each event of the stream, with its end, as it came. The last may be incomplete if the stream was cut."""
        event = b""
        while line := self.response.readline():
            event += line
            if line == b"\n":
                yield event
                event = b""
        if event:
            yield event

    def has_ended(self):
        """Whether the stream's end has come, while none of it has been read."""
        try:
            return b"[DONE]" in self._sock.recv(1 << 20, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def leave_after(self, events):
        """Reads so many events, or all if there are fewer, and leaves; returns them. 0 means at once."""
        read = list(islice(self.raw_events(), events)) if events else []
        self.close()
        return read

    def json(self):
        return json.loads(self.response.read())

    def close(self):
        """Leaves politely (FIN)."""
        self._sock.close()
        if self._response is not None:
            self._response.close()
        self._connection.close()

    def reset(self):
        """Leaves at once (RST)."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()
