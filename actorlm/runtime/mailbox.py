"""The one queue in front of an actor. Bounded; its overflow policy says who waits. One event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from actorlm.runtime.errors import MailboxFull

M = TypeVar("M")

BATCH = 256


class Overflow(Enum):
    """What happens to a message that finds the mailbox full."""

    PAUSE = "pause"
    """Ports stop reading their sockets, so senders fill their own queues and wait; a local `put` raises MailboxFull."""

    REFUSE = "refuse"
    """`put` raises MailboxFull; a port drops and counts."""

    DROP_NEWEST = "drop newest"
    """The message is dropped and counted."""


class Envelope(NamedTuple, Generic[M]):
    """A message and the name of the actor it is from."""

    sender: str
    message: M


class Mailbox(Generic[M]):
    """Messages in the order in which they came.

    `accepted`, `refused` and `dropped` count messages since the start; `high_water` is the largest depth so far.
    """

    def __init__(self, name: str, capacity: int, overflow: Overflow) -> None:
        assert capacity > 0, "a mailbox holds at least one message"
        self.name = name
        self.capacity = capacity
        self.overflow = overflow
        self.high_water = 0
        self.accepted = 0
        self.refused = 0
        self.dropped = 0
        self._queue: deque[Envelope[M]] = deque()
        self._filled = asyncio.Event()
        self._room_callbacks: list[Callable[[], None]] = []

    @property
    def depth(self) -> int:
        """Messages waiting now."""
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether the next message would overflow."""
        return len(self._queue) >= self.capacity

    @property
    def pauses_ports(self) -> bool:
        """Whether ports must not read now. They are told when they may, through `on_room`."""
        return self.overflow is Overflow.PAUSE and self.is_full

    def on_room(self, callback: Callable[[], None]) -> None:
        """Calls `callback` each time that a full mailbox has room again."""
        self._room_callbacks.append(callback)

    def put(self, sender: str, message: M) -> bool:
        """Adds a message; False if it was dropped. Raises MailboxFull unless the policy is DROP_NEWEST."""
        if self.is_full:
            return self._overflowed(message)
        self._queue.append(Envelope(sender, message))
        self.accepted += 1
        self.high_water = max(self.high_water, len(self._queue))
        self._filled.set()
        return True

    async def drain(self, limit: int = BATCH) -> list[Envelope[M]]:
        """Waits for a message, then takes all that are there, up to `limit`. Cancelling it loses none."""
        while not self._queue:
            self._filled.clear()
            await self._filled.wait()
        was_full = self.is_full
        batch = [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]
        if was_full:
            for callback in self._room_callbacks:
                callback()
        return batch

    def _overflowed(self, message: M) -> bool:
        if self.overflow is Overflow.DROP_NEWEST:
            self.dropped += 1
            return False
        self.refused += 1
        raise MailboxFull(
            f"the mailbox of {self.name} holds {self.capacity} messages; {type(message).__name__} finds no room"
        )
