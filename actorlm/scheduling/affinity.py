"""What a balancer remembers to send like to like: beginnings of prompts by replica, replicas by session.

A beginning is named block by block as in prefix.py, by a hash over the block and the name of the one before it; the
names differ in each process, so nobody can prepare two prompts of one name, and if two have one by chance a request
goes to another replica than it might have. Both memories are bounded, and forget what was used longest ago. They may
be wrong about what a replica still holds; that costs time and nothing else.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence

from actorlm.config import BLOCK_SIZE
from actorlm.scheduling.load import BURST_S

BLOCK_BYTES = 4 * BLOCK_SIZE
MAX_SESSIONS = 65_536
MAX_RECENT = 64
"""Prompts that are looked at for what they have in common."""


def block_names(prompt_ids: bytes, salt: str) -> list[int]:
    """The names of a prompt's full blocks; `prompt_ids` is an int32 column."""
    return list(_names(prompt_ids, hash(salt)))


def _names(prompt_ids: bytes, name: int) -> Iterator[int]:
    for end in range(BLOCK_BYTES, len(prompt_ids) + 1, BLOCK_BYTES):
        name = hash((name, prompt_ids[end - BLOCK_BYTES : end]))
        yield name


class PrefixMemory:
    """The last `capacity` blocks that one replica has been sent."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def held(self, names: Sequence[int]) -> int:
        """How many of these blocks, from the first on, are remembered. A block is never without those before it."""
        return bisect_left(names, True, key=lambda name: name not in self._blocks)

    def remember(self, names: Sequence[int]) -> None:
        """The replica is sent these blocks. The last is forgotten first: without those before it, it is of no use."""
        for name in reversed(names[: self._capacity]):
            self._blocks[name] = None
            self._blocks.move_to_end(name)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)


class Demand:
    """The last MAX_RECENT prompts: what several of them begin with."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, Sequence[int]]] = deque(maxlen=MAX_RECENT)

    def note(self, names: Sequence[int], now: float) -> None:
        """A prompt of these blocks is sent to a replica."""
        while self._recent and now - self._recent[0][0] >= BURST_S:
            self._recent.popleft()
        self._recent.append((now, names))

    def shared(self, names: Sequence[int], now: float) -> int:
        """How many of these blocks, from the first on, at least two prompts of the last BURST_S begin with."""
        longest = second = 0
        for at, other in self._recent:
            if now - at < BURST_S and (length := _common(names, other)) > second:
                longest, second = max(longest, length), min(longest, length)
        return second


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many blocks two prompts have in common. Blocks of one name have the same blocks before them."""
    places = range(min(len(one), len(other)))
    return bisect_left(places, True, key=lambda place: one[place] != other[place])


class Sessions:
    """The replica at which each of the last `capacity` sessions was."""

    def __init__(self, capacity: int = MAX_SESSIONS) -> None:
        self._capacity = capacity
        self._replicas: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replicas)

    def place(self, session: str) -> int | None:
        """The replica at which a session was, if that is known."""
        return self._replicas.get(session)

    def remember(self, session: str, replica: int) -> None:
        """A request of the session goes to this replica."""
        self._replicas[session] = replica
        self._replicas.move_to_end(session)
        if len(self._replicas) > self._capacity:
            self._replicas.popitem(last=False)

    def forget(self, replica: int) -> None:
        """A replica is gone, and what it held of its sessions."""
        for session in [session for session, place in self._replicas.items() if place == replica]:
            del self._replicas[session]
