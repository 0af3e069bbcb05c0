"""What is on its way to one client: deltas gathered into one message a turn, and how much of it the client has read.

At most about WINDOW messages of WINDOW_BYTES are unread: then there is no room, and those who bring deltas wait. A Ping
that is answered says that everything before it was read, so one is sent with every few messages or bytes, and with
every beat. Must not know: requests.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from actorlm.api.ports import ID_BYTES, Delta
from actorlm.errors import ProtocolError
from actorlm.logprobs import pack
from actorlm.messages.client import Ping, RequestCompleted, RequestFailed, TextGenerated
from actorlm.messages.frontend import Finish
from actorlm.wire import Message, int32, int64

WINDOW = 1024
PING_EVERY = 128
WINDOW_BYTES = 2**23
PING_BYTES = 2**20
MAX_ROWS = 256

_FINISH = {None: Finish.NOT_YET, "stop": Finish.STOP, "length": Finish.LENGTH}

Row = tuple[int, Delta]


class Outbox:
    """Gathers what one client is told. `send` hands a message to its connection, and raises nothing."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._rows: list[Row] = []
        self._endings: list[RequestCompleted | RequestFailed] = []
        self._scheduled = False
        self._sent = 0
        self._pinged = 0
        self._read = 0
        self._unread: deque[tuple[int, int]] = deque()
        self._unread_bytes = self._bytes_since_ping = 0
        self._progress = asyncio.Event()
        self.unanswered = 0
        """Beats since the client has answered a Ping."""

    def add(self, request: int, delta: Delta) -> None:
        """Has it leave with all else of this turn of the event loop."""
        self._rows.append((request, delta))
        self._schedule()

    def end(self, ending: RequestCompleted | RequestFailed) -> None:
        """Has it leave after all that was added before."""
        self._endings.append(ending)
        self._schedule()

    @property
    def has_room(self) -> bool:
        """Whether the client has little enough to read."""
        return self._sent - self._read < WINDOW and self._unread_bytes < WINDOW_BYTES

    async def progress(self) -> None:
        """Waits until the client has read on."""
        await self._progress.wait()

    def beat(self) -> None:
        """Asks whether the client reads."""
        self.unanswered += 1
        self._ping()

    def pong(self, number: int) -> None:
        """The client has read the first `number` messages. Raises ProtocolError if that cannot be."""
        if not self._read <= number <= self._pinged:
            raise ProtocolError(f"a Pong of {number}; the last was {self._read}, the last Ping {self._pinged}")
        self.unanswered = 0
        if number == self._read:
            return
        self._read = number
        while self._unread and self._unread[0][0] <= number:
            self._unread_bytes -= self._unread.popleft()[1]
        self._progress.set()
        self._progress = asyncio.Event()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        rows, self._rows = self._rows, []
        endings, self._endings = self._endings, []
        for start in range(0, len(rows), MAX_ROWS):
            few = rows[start : start + MAX_ROWS]
            self._say(_columns(few), sum(delta.size for _, delta in few))
        for ending in endings:
            self._say(ending)

    def _say(self, message: Message, size: int = 0) -> None:
        self._send(message)
        self._sent += 1
        if size:
            self._unread.append((self._sent, size))
        self._unread_bytes += size
        self._bytes_since_ping += size
        if self._sent - self._pinged >= PING_EVERY or self._bytes_since_ping >= PING_BYTES:
            self._ping()

    def _ping(self) -> None:
        self._pinged, self._bytes_since_ping = self._sent, 0
        self._send(Ping(self._sent))


def _columns(rows: list[Row]) -> TextGenerated:
    deltas = [delta for _, delta in rows]
    return TextGenerated(
        requests=int64(request for request, _ in rows),
        choices=int32(delta.choice for delta in deltas),
        counts=int32(len(delta.ids) // ID_BYTES for delta in deltas),
        tokens=b"".join(delta.ids for delta in deltas),
        texts=tuple(delta.text for delta in deltas),
        finishes=bytes(_FINISH[delta.finish] for delta in deltas),
        cached=int32(delta.cached_tokens for delta in deltas),
        logprobs=pack([delta.scores for delta in deltas]),
    )
