"""The choice of a replica for each request, by expected work and by what replicas hold of its prompt.

Owns: which requests each replica has, the account of its work, the memories of prompts and sessions. docs/balancing.md
tells the policy. Must not know: how requests and aborts travel.
"""

import math
from collections import deque
from collections.abc import Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from actorlm.config import BLOCK_SIZE
from actorlm.errors import Unavailable
from actorlm.scheduling.affinity import Demand, PrefixMemory, Sessions
from actorlm.scheduling.load import Load
from actorlm.scheduling.workload import UNCOUNTED, Sent, Workload

MAX_PASSES = 8
"""No replica is passed over for more than so many choices for each replica that there is, however much it has to do."""


class Wish(NamedTuple):
    """What is known of a request when its replica is chosen: tokens to prefill and to generate, names of its blocks.

    `detokenizer` is where its tokens go.
    """

    request: int
    prefill: int
    decode: int
    blocks: Sequence[int] = ()
    session: str = ""
    replica: int | None = None
    attempt: int = 0
    detokenizer: int = 0


class Room(NamedTuple):
    """What each replica takes: requests that have not ended, and tokens to prefill of those that wait."""

    requests: float = math.inf
    waiting_tokens: float = math.inf


BOUNDLESS = Room()


class Choice(NamedTuple):
    """A replica, and how many tokens of the prompt it is believed to hold."""

    replica: int
    held: int


@dataclass(slots=True, eq=False)
class _Replica:
    """One life of a replica. `turn` is the last one in which it was chosen."""

    number: int
    workload: Workload
    memory: PrefixMemory
    turn: int
    open: int = 0
    is_reached: bool = True
    cut_off: frozenset[int] = frozenset()
    """The detokenizers that it does not reach."""

    def has(self, room: Room, prefill: int) -> bool:
        """Whether it surely takes one more request, of so many tokens to prefill."""
        return self.open < room.requests and self.workload.waiting + prefill <= room.waiting_tokens


@dataclass(slots=True)
class _Placed:
    """Where a request is, and its attempts that have not ended, the oldest first.

    The newest has the number `attempt`, and `is_wanted` until its replica is told to end it.
    """

    replica: _Replica
    attempt: int
    attempts: deque[Sent] = field(default_factory=deque)
    is_wanted: bool = True


class Balance:
    """Who works on what, until it ends.

    For a session's sake, or for what it holds of a prompt, a replica is chosen only if its expected work exceeds the
    least by no more than `max_imbalance` tokens. One that has no room is passed over while another one has some.
    """

    def __init__(self, max_imbalance: int, room: Room = BOUNDLESS) -> None:
        self._max_imbalance = max_imbalance
        self._room = room
        self._replicas: dict[int, _Replica] = {}
        self._placed: dict[int, _Placed] = {}
        self._sessions = Sessions()
        self._demand = Demand()
        self._turns = 0

    @property
    def requests(self) -> KeysView[int]:
        """All requests that have been placed and have not ended."""
        return self._placed.keys()

    @property
    def expected_work(self) -> dict[int, int]:
        """Of each replica, in tokens of a prefill."""
        return {number: replica.workload.expected for number, replica in self._replicas.items()}

    def join(self, replica: int, capacity: int) -> None:
        """A replica takes requests from now on; `capacity` is its KV cache in tokens. It may be told again."""
        if replica not in self._replicas:
            memory = PrefixMemory(capacity // BLOCK_SIZE)
            self._replicas[replica] = _Replica(replica, Workload(capacity), memory, self._next_turn())

    def lose_sight(self, replica: int) -> None:
        """Nothing reaches this replica any more. It keeps what it has, and is not chosen before it joins again."""
        self._replicas[replica].is_reached = False

    def cut_off(self, replica: int, detokenizers: Iterable[int]) -> None:
        """What a replica generates comes to all detokenizers but these. Unknown replicas are ignored."""
        if replica in self._replicas:
            self._replicas[replica].cut_off = frozenset(detokenizers)

    def leave(self, replica: int) -> list[tuple[int, int]]:
        """A replica is gone, or has yet to say what it holds, and all that is known of it.

        Returns its requests that were not aborted, in the order in which they came, each with its newest attempt.
        """
        left = self._replicas.pop(replica, None)
        if left is None:
            return []
        self._sessions.forget(replica)
        lost = {request: placed for request, placed in self._placed.items() if placed.replica is left}
        for request in lost:
            del self._placed[request]
        return [(request, placed.attempt) for request, placed in lost.items() if placed.is_wanted]

    def choose(self, wish: Wish, now: float) -> Choice:
        """The replica that is to work on a request. Nothing changes before `place`. Raises Unavailable without one.

        The next attempt of a request that has not ended goes where the last one is, behind the abort of that one.
        """
        placed = self._placed.get(wish.request)
        held = {number: replica.memory.held(wish.blocks) for number, replica in self._replicas.items()}
        number = self._find(wish, held, now) if placed is None else self._asked_for(placed.replica.number)
        return Choice(number, min(held[number] * BLOCK_SIZE, wish.prefill - 1))

    def place(self, wish: Wish, choice: Choice, now: float) -> None:
        """The request has been sent to the replica that was chosen."""
        replica = self._replicas[choice.replica]
        placed = self._placed.setdefault(wish.request, _Placed(replica, wish.attempt))
        placed.attempt, placed.is_wanted = wish.attempt, True
        replica.open += not placed.attempts
        placed.attempts.append(replica.workload.send(wish.prefill - choice.held, wish.decode))
        replica.memory.remember(wish.blocks)
        self._demand.note(wish.blocks, now)
        replica.turn = self._next_turn()
        if wish.session:
            self._sessions.remember(wish.session, replica.number)

    def restore(self, request: int, attempt: int, replica: int) -> None:
        """The replica has this already, and counts it in its reports."""
        self._placed[request] = _Placed(self._replicas[replica], attempt, deque([UNCOUNTED]))
        self._replicas[replica].open += 1

    def attempt(self, request: int) -> int | None:
        """The newest attempt of a request that a replica has and was not told to end, or None."""
        placed = self._placed.get(request)
        return placed.attempt if placed is not None and placed.is_wanted else None

    def owner(self, request: int) -> int | None:
        """The replica that works on a request, or None if it has ended or never was."""
        placed = self._placed.get(request)
        return None if placed is None else placed.replica.number

    def aborted(self, request: int, now: float) -> None:
        """The replica is told to end this request, which is its own until it has."""
        placed = self._placed[request]
        placed.is_wanted = False
        for sent in placed.attempts:
            placed.replica.workload.end(sent, now)

    def ended(self, replica: int, requests: Iterable[int], now: float) -> None:
        """An attempt of each of these has left this replica: finished, aborted or refused. Others' are ignored."""
        for request in requests:
            placed = self._placed.get(request)
            if placed is None or placed.replica.number != replica:
                continue
            placed.replica.workload.end(placed.attempts.popleft(), now)
            if not placed.attempts:
                placed.replica.open -= 1
                del self._placed[request]

    def reported(self, replica: int, received: int, load: Load, now: float) -> None:
        """What a replica says of its load, and how many requests it had received. Unknown ones are ignored."""
        if replica in self._replicas:
            self._replicas[replica].workload.report(received, load, now)

    def check(self) -> None:
        """Proves the accounts. Raises AssertionError."""
        for replica in self._replicas.values():
            replica.workload.check()
            placed_here = sum(placed.replica is replica for placed in self._placed.values())
            assert replica.open == placed_here, f"replica {replica.number}: {replica.open} are open"
        for request, placed in self._placed.items():
            number = placed.replica.number
            assert self._replicas.get(number) is placed.replica, f"request {request} is at replica {number}, gone"
            assert placed.attempts, f"request {request} has ended and is kept"

    def _find(self, wish: Wish, held: Mapping[int, int], now: float) -> int:
        """The replica for a new request, of which replicas hold so many blocks.

        Blocks that are in demand do not count: every replica will hold them soon.
        """
        if wish.replica is not None:
            return self._asked_for(wish.replica)
        reached = {number: replica for number, replica in self._replicas.items() if replica.is_reached}
        if not reached:
            raise Unavailable("no replica takes requests now; try again when one has started")
        candidates = _with_room(_that_reach(wish.detokenizer, reached), self._room, wish.prefill)
        within = self._within_bound(candidates)
        before = self._sessions.place(wish.session) if wish.session else None
        if before in within:
            return before
        shared = self._demand.shared(wish.blocks, now)
        own = {number: max(0, blocks - shared) for number, blocks in held.items()}
        alike = min(own.values()) == max(own.values())
        return self._fairest(within, candidates, now) if alike else self._nearest(within, own, now)

    def _asked_for(self, number: int) -> int:
        if number not in self._replicas or not self._replicas[number].is_reached:
            raise Unavailable(f"replica {number} takes no requests now; try again when it has started, or ask for none")
        return number

    def _within_bound(self, candidates: Mapping[int, _Replica]) -> dict[int, _Replica]:
        work = {number: replica.workload.expected for number, replica in candidates.items()}
        most = min(work.values()) + self._max_imbalance
        return {number: replica for number, replica in candidates.items() if work[number] <= most}

    def _nearest(self, replicas: Mapping[int, _Replica], held: Mapping[int, int], now: float) -> int:
        """A token that a replica holds is a token of work less."""

        def rank(number: int) -> tuple[int, int, int]:
            replica = replicas[number]
            work = replica.workload
            return work.expected - BLOCK_SIZE * held[number], work.before_progress(now), replica.turn

        return min(replicas, key=rank)

    def _fairest(self, replicas: Mapping[int, _Replica], candidates: Mapping[int, _Replica], now: float) -> int:
        """The least work, and of equal ones the one that was chosen longest ago; but none is passed over for ever."""
        forgotten = min(candidates.values(), key=lambda replica: replica.turn)
        if self._turns - forgotten.turn >= MAX_PASSES * len(candidates):
            return forgotten.number

        def rank(number: int) -> tuple[int, int]:
            return replicas[number].workload.before_progress(now), replicas[number].turn

        return min(replicas, key=rank)

    def _next_turn(self) -> int:
        self._turns += 1
        return self._turns


def _that_reach(detokenizer: int, replicas: dict[int, _Replica]) -> dict[int, _Replica]:
    """All, if it is cut off from each: it may soon be there again."""
    return {number: one for number, one in replicas.items() if detokenizer not in one.cut_off} or replicas


def _with_room(replicas: dict[int, _Replica], room: Room, prefill: int) -> dict[int, _Replica]:
    """All, if none is sure to have room: they know best."""
    return {number: one for number, one in replicas.items() if one.has(room, prefill)} or replicas
