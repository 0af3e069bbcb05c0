"""The plan of one step: what the scheduler decided, in lists, and its encoding as the message to the workers."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from actorlm.messages.worker import AddRequest, RunStep
from actorlm.scheduling.request import Request
from actorlm.wire import int32


@dataclass(slots=True, eq=False)
class StepPlan:
    """The columns of RunStep before they are packed, and the requests of its rows."""

    step: int
    released: list[int] = field(default_factory=list)
    added: list[AddRequest] = field(default_factory=list)
    entered: list[Request] = field(default_factory=list)
    """The requests of `added`."""
    block_slots: list[int] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)

    @property
    def is_all_new(self) -> bool:
        """Whether all its requests enter their slots with it."""
        return {request.slot for request in self.added}.issuperset(self.slots)

    def add_request(self, request: Request) -> None:
        """The request enters its slot, with the blocks that it has."""
        ids = request.token_ids.tobytes()
        self.added.append(AddRequest(request.slot, ids, request.prompt_length, request.sampling, request.trace_id))
        self.entered.append(request)
        self.add_blocks(request, request.blocks)

    def add_blocks(self, request: Request, blocks: Iterable[int]) -> None:
        """The request's table grows by these blocks."""
        for block in blocks:
            self.block_slots.append(request.slot)
            self.block_ids.append(block)

    def add_row(self, request: Request, count: int) -> None:
        """The request's next `count` tokens are computed; if they are its last ones, a token is sampled."""
        start = request.num_scheduled
        request.num_scheduled = end = start + count
        request.steps_in_flight += 1
        if end == len(request.token_ids) + request.num_pending:
            request.num_pending += 1
            self.sampled.append(len(self.requests))
        self.requests.append(request)
        self.slots.append(request.slot)
        self.starts.append(start)
        self.counts.append(count)


def encode(plan: StepPlan) -> RunStep:
    """The message that makes workers run the plan."""
    return RunStep(
        step=plan.step,
        released=int32(plan.released),
        added=tuple(plan.added),
        block_slots=int32(plan.block_slots),
        block_ids=int32(plan.block_ids),
        slots=int32(plan.slots),
        starts=int32(plan.starts),
        counts=int32(plan.counts),
        sampled=int32(plan.sampled),
    )
