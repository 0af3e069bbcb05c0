"""The policy of policy.py once more, in the plainest way: numbers of tokens, sorted lists, no block ids.

Without a prefix cache and with one step at a time, it says exactly which rows each step has.
"""

from dataclasses import dataclass
from math import ceil

from actorlm.config import BLOCK_SIZE
from actorlm.scheduling.load import DECODE_COST, HORIZON
from actorlm.scheduling.policy import AGEING_STEPS

WEIGHTS = {"": 1.0, "a": 1.0, "b": 2.0, "c": 0.3}
"""Of the callers."""


@dataclass
class NaiveRequest:
    id: int
    rank: tuple[int, int]
    known: int
    tenant: str
    most: int
    ran: bool
    charged_at: int = 0
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
        self.by_priority = policy == "priority"
        self.requests: dict[int, NaiveRequest] = {}
        self.used = dict.fromkeys(WEIGHTS, 0.0)
        self.turns = dict.fromkeys(WEIGHTS, 0)
        self.level = self.most = 0.0
        self.numbers = self.steps = 0
        self.preemptions = 0

    def add(self, request_id: int, known: int, most: int, priority: int = 0, tenant: str = "", resumes=False) -> None:
        """`most` is the longest that it may become."""
        urgency = self.steps + AGEING_STEPS * priority if self.by_priority else 0
        if not resumes and not self.newcomers(tenant):
            self.used[tenant] = max(self.used[tenant], self.level)
            self.turns[tenant] = self.number()
        self.requests[request_id] = NaiveRequest(request_id, (urgency, self.number()), known, tenant, most, resumes)

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def end(self, request_id: int, known: int) -> None:
        request = self.requests.pop(request_id)
        if request.charged_at:
            generated = known - request.charged_at
            expected = min(HORIZON, request.most - request.charged_at)
            self.charge(request.tenant, DECODE_COST * (generated - expected))
        self.level_out()

    def newcomers(self, tenant: str) -> list[NaiveRequest]:
        found = (r for r in self.requests.values() if r.tenant == tenant and not r.ran)
        return sorted(found, key=lambda r: r.rank)

    def level_out(self) -> None:
        if not any(not r.ran for r in self.requests.values()):
            self.level = self.most

    def charge(self, tenant: str, work: float) -> None:
        self.used[tenant] += work / WEIGHTS[tenant]
        self.most = max(self.most, self.used[tenant])
        self.turns[tenant] = self.number()

    def next(self) -> NaiveRequest | None:
        """Who has run; else the first of the caller that has used least, or if that is the more urgent one."""
        back = sorted((r for r in self.requests.values() if r.ran and not r.runs), key=lambda r: r.rank)
        callers = [tenant for tenant in WEIGHTS if self.newcomers(tenant)]
        if not callers:
            return back[0] if back else None
        new = self.newcomers(min(callers, key=lambda tenant: (self.used[tenant], self.turns[tenant])))[0]
        return back[0] if back and back[0].rank[0] <= new.rank[0] else new

    def running(self) -> list[NaiveRequest]:
        return sorted((r for r in self.requests.values() if r.runs), key=lambda r: r.rank)

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
        while left and (request := candidates.pop(0) if candidates else self.next()):
            if not request.runs and not self.enter(request):
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
        if not request.ran:
            self.level = max(self.level, self.used[request.tenant])
            request.rank, request.ran = (request.rank[0], self.number()), True
        if not request.charged_at:
            request.charged_at = request.known
            self.charge(request.tenant, request.known + DECODE_COST * min(HORIZON, request.most - request.known))
        self.level_out()
        return True
