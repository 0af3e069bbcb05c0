"""Cuts a stream of bytes into the data of its server-sent events."""

from actorlm.remote.failure import Failure

MAX_EVENT = 16 << 20
"""Bytes of an event that has not ended; more is no event of a language model."""


class Events:
    """Feed it bytes however they were cut; comments, names and ids of events are dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that these bytes complete. Raises Failure for an event without end."""
        if self._rest:
            data = self._rest + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        blocks = data.split(b"\n\n")
        self._rest = blocks.pop()
        if len(self._rest) > MAX_EVENT:
            raise Failure("endless event", f"more than {MAX_EVENT >> 20} MiB without an end of event")
        return [found for block in blocks if (found := _data(block)) is not None]

    def end(self) -> list[bytes]:
        """The data of a last event that lacks its blank line."""
        rest, self._rest = self._rest, b""
        found = _data(rest)
        return [] if found is None else [found]


def _data(block: bytes) -> bytes | None:
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
