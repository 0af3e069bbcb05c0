"""The policy of policy.py once more, in the plainest way: numbers of tokens, sorted lists, no block ids.

Without a prefix cache and with one step at a time, it says exactly which rows each step has.
"""

from dataclasses import dataclass
from math import ceil

from actorlm.config import BLOCK_SIZE
from actorlm.scheduling.policy import AGEING_STEPS


@dataclass
class NaiveRequest:
    id: int
    rank: tuple[int, int]
    known: int
    computed: int = 0
    blocks: int = 0
    runs: bool = False

    @property
    def left(self) -> int:
        return self.known - self.computed

    def stop(self) -> None:
        self.computed, self.blocks, self.runs = 0, 0, False


class NaiveScheduler:
    def __init__(self, *, num_blocks: int, max_num_seqs: int, budget: int, policy: str = "fcfs") -> None:
        self.num_blocks, self.max_num_seqs, self.budget = num_blocks, max_num_seqs, budget
        self.requests: dict[int, NaiveRequest] = {}
        self.arrivals = self.steps = 0
        self.preemptions = 0

    def add(self, request_id: int, known: int, priority: int = 0, attempt: int = 0) -> None:
        self.arrivals += 1
        rank = ((-1 if attempt else self.steps) + AGEING_STEPS * priority, self.arrivals)
        self.requests[request_id] = NaiveRequest(request_id, rank, known)

    def running(self) -> list[NaiveRequest]:
        return sorted((r for r in self.requests.values() if r.runs), key=lambda r: r.rank)

    def waiting(self) -> list[NaiveRequest]:
        return sorted((r for r in self.requests.values() if not r.runs), key=lambda r: r.rank)

    def free(self) -> int:
        return self.num_blocks - sum(r.blocks for r in self.requests.values())

    def plan(self) -> dict[int, tuple[int, int]]:
        """Start and count by request."""
        rows = {}
        for request in [r for r in self.running() if r.left == 1]:
            self.make_room(request)
            if request.runs:
                request.blocks = max(request.blocks, ceil(request.known / BLOCK_SIZE))
                rows[request.id] = (request.computed, 1)
        left = self.budget - len(rows)
        shares: list[tuple[NaiveRequest, int]] = []
        candidates = [r for r in self.running() if r.left > 1]
        for request in candidates + self.waiting():
            if left == 0 or (not request.runs and not self.enter(request)):
                break
            shares.append((request, min(request.left, ceil(left / 2))))
            left -= shares[-1][1]
        for request, share in shares:
            more = min(left, request.left - share)
            left -= more
            rows[request.id] = (request.computed, share + more)
        for request_id, (_, count) in rows.items():
            self.requests[request_id].computed += count
        self.steps += 1
        return rows

    def make_room(self, request: NaiveRequest) -> None:
        while request.runs and request.blocks * BLOCK_SIZE < request.known and self.free() == 0:
            self.running()[-1].stop()
            self.preemptions += 1

    def enter(self, request: NaiveRequest) -> bool:
        blocks = ceil(request.known / BLOCK_SIZE)
        runners = len(self.running())
        if runners >= min(self.max_num_seqs, self.budget) or blocks + runners > self.free():
            return False
        request.blocks, request.runs = blocks, True
        return True
