"""What a Worker receives: the plan of a step, and calls outside of steps.

RunStep carries deltas. A worker keeps, for every slot, the token ids known so far, the block table and the
sampling parameters; it appends the tokens that it samples, so a decode row needs no token id on the wire.
"""

from actorlm.sampling import SamplingParams
from actorlm.wire import Int32, Message


class AddRequest(Message):
    """A request enters a slot, for the first time or after a preemption. Part of RunStep, not sent alone.

    `token_ids` are all ids known so far, prompt and generated; `prompt_length` says how many are prompt. `trace_id` is
    for logs.
    """

    slot: int
    token_ids: Int32
    prompt_length: int
    sampling: SamplingParams
    trace_id: str = ""


class RunStep(Message):
    """One step of one replica. Columns of equal meaning have equal length.

    Applied in this order: `released` slots forget everything; `added` requests enter their slots with an empty
    block table; `block_ids[i]` is appended to the table of `block_slots[i]`; then row i computes the tokens
    [starts[i], starts[i] + counts[i]) of `slots[i]`, attending to all tokens before and among them. The rows
    whose indices are in `sampled` (ascending) end at the slot's last known token: one token is sampled from
    each and appended to its slot.
    """

    step: int
    released: Int32
    added: tuple[AddRequest, ...]
    block_slots: Int32
    block_ids: Int32
    slots: Int32
    starts: Int32
    counts: Int32
    sampled: Int32


class Sync(Message):
    """Repeated by the engine until every rank has answered WorkerReady: proof that this socket delivers."""

    epoch: int


class CallMethod(Message):
    """A call outside of steps. `method` is one that the worker lists as callable; `args` is its msgpack array."""

    call: int
    method: str
    args: bytes
    reply_rank: int | None = None


class StopWorker(Message):
    """Finish and exit with status 0."""


Inbox = RunStep | Sync | CallMethod | StopWorker
