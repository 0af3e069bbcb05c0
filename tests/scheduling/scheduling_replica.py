"""A replica without devices: a scheduler, and a worker that believes nothing.

The worker applies RunStep to state of its own, as messages/worker.py says. Where KV would be, it keeps a hash of the
tokens up to each position, and it checks every one that a row attends to. A token is a hash of all ids before it.
"""

from collections import deque
from dataclasses import dataclass, field

from actorlm.config import BLOCK_SIZE, SchedulerConfig
from actorlm.messages.engine import Generate
from actorlm.messages.frontend import Finish
from actorlm.messages.worker import RunStep
from actorlm.sampling import SamplingParams
from actorlm.scheduling.plan import StepPlan, encode
from actorlm.scheduling.request import Request
from actorlm.scheduling.scheduler import Scheduler
from actorlm.wire import int32, read_int32

VOCABULARY = 97


def hash_on(parent: int, token: int) -> int:
    return hash((parent, token))


def next_token(prefix_hash: int) -> int:
    return prefix_hash % VOCABULARY


def alone(prompt, sampling: SamplingParams, *, eos=(), max_length: int) -> tuple[list[int], Finish]:
    """What a request generates when nothing else exists, and why it ends."""
    prefix_hash, output = 0, []
    for token in prompt:
        prefix_hash = hash_on(prefix_hash, token)
    while True:
        token = next_token(prefix_hash)
        prefix_hash = hash_on(prefix_hash, token)
        output.append(token)
        stops = token in sampling.stop_token_ids or (token in eos and not sampling.ignore_eos)
        if stops and len(output) >= sampling.min_tokens:
            return output, Finish.STOP
        if len(output) >= sampling.max_tokens or len(prompt) + len(output) >= max_length:
            return output, Finish.LENGTH


def generate(
    request_id: int,
    prompt,
    *,
    generated=(),
    attempt=0,
    salt="",
    priority=0,
    tenant="",
    weight=1.0,
    suspect=False,
    **sampling,
) -> Generate:
    sampling = {"max_tokens": 8, **sampling}
    return Generate(
        request=request_id,
        attempt=attempt,
        frontend="frontend-0",
        detokenizer=0,
        prompt_ids=int32(prompt),
        generated_ids=int32(generated),
        sampling=SamplingParams(**sampling),
        cache_salt=salt,
        priority=priority,
        tenant=tenant,
        weight=weight,
        suspect=suspect,
    )


@dataclass
class Slot:
    """`hashes[p]` stands for the tokens up to and with position p."""

    hashes: list[int] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    computed: int = 0

    def append(self, token: int) -> None:
        self.hashes.append(hash_on(self.hashes[-1] if self.hashes else 0, token))


class SuspiciousWorker:
    def __init__(self, num_blocks: int, max_num_seqs: int) -> None:
        self.kv: list[list[int | None]] = [[None] * BLOCK_SIZE for _ in range(num_blocks)]
        self.max_num_seqs = max_num_seqs
        self.slots: dict[int, Slot] = {}
        self.last_step = -1
        self.tokens_computed = 0

    def run(self, step: RunStep) -> list[int]:
        assert step.step == self.last_step + 1
        self.last_step = step.step
        for slot in read_int32(step.released):
            del self.slots[slot]
        for added in step.added:
            self._enter(added)
        for slot, block in zip(read_int32(step.block_slots), read_int32(step.block_ids), strict=True):
            self.slots[slot].table.append(block)
        rows = list(zip(read_int32(step.slots), read_int32(step.starts), read_int32(step.counts), strict=True))
        sampled = list(read_int32(step.sampled))
        assert sampled == sorted(set(sampled))
        assert len({slot for slot, _, _ in rows}) == len(rows)
        for slot, start, count in rows:
            self._write(slot, start, count)
        for slot, start, count in rows:
            self._read(self.slots[slot], start + count)
        return self._sample(rows, sampled)

    def _enter(self, added) -> None:
        assert 0 <= added.slot < self.max_num_seqs
        assert added.slot not in self.slots
        assert 0 < added.prompt_length <= len(added.token_ids) // 4
        slot = self.slots[added.slot] = Slot(computed=-1)
        for token in read_int32(added.token_ids):
            slot.append(token)

    def _write(self, number: int, start: int, count: int) -> None:
        slot = self.slots[number]
        if slot.computed < 0:  # the first row: what is before it came from the prefix cache
            assert start % BLOCK_SIZE == 0
            slot.computed = start
        assert start == slot.computed
        assert count > 0
        assert start + count <= len(slot.hashes)
        assert start + count <= len(slot.table) * BLOCK_SIZE
        for position in range(start, start + count):
            block = slot.table[position // BLOCK_SIZE]
            others = [other for other in self.slots.values() if other is not slot and block in other.table]
            assert all(other.computed <= position for other in others), "others rely on what is there"
            self.kv[block][position % BLOCK_SIZE] = slot.hashes[position]
        slot.computed += count
        self.tokens_computed += count

    def _read(self, slot: Slot, end: int) -> None:
        assert len(set(slot.table)) == len(slot.table)
        for position in range(end):
            stored = self.kv[slot.table[position // BLOCK_SIZE]][position % BLOCK_SIZE]
            assert stored == slot.hashes[position], f"position {position} attends to another sequence"

    def _sample(self, rows, sampled: list[int]) -> list[int]:
        tokens = []
        for index, (number, start, count) in enumerate(rows):
            slot = self.slots[number]
            assert (index in sampled) == (start + count == len(slot.hashes))
            if index in sampled:
                tokens.append(next_token(slot.hashes[-1]))
                slot.append(tokens[-1])
        return tokens


class Replica:
    """Drives the two together, and keeps what came out. `steps` are the plans that were made."""

    def __init__(
        self,
        *,
        num_blocks=16,
        max_num_seqs=4,
        budget=64,
        max_model_len=10_000,
        max_waiting=10_000,
        max_waiting_tokens=10**6,
        eos=(),
        prefix_caching=True,
        policy="fcfs",
        lanes=1,
        async_scheduling=True,
    ) -> None:
        config = SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_waiting=max_waiting,
            max_waiting_tokens=max_waiting_tokens,
            scheduling_policy=policy,
            async_scheduling=async_scheduling,
        )
        self.eos = eos
        self.budget = budget
        self.max_length = min(max_model_len, num_blocks * BLOCK_SIZE + 1)
        self.scheduler = Scheduler(
            config,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            eos_token_ids=eos,
            prefix_caching=prefix_caching,
            lanes=lanes,
        )
        self.worker = SuspiciousWorker(num_blocks, max_num_seqs)
        self.in_flight: deque[tuple[StepPlan, list[int]]] = deque()
        self.requests: dict[int, Request] = {}
        self.expected: dict[int, tuple[list[int], Finish]] = {}
        self.outputs: dict[int, list[int]] = {}
        self.finishes: dict[int, Finish] = {}
        self.num_steps = 0

    def add(self, request_id: int, prompt, **options) -> Request:
        """A new request; `options` are those of `generate`."""
        message = generate(request_id, prompt, **options)
        request = Request.from_generate(message)
        self.scheduler.add(request)
        self.requests[request_id] = request
        self.outputs[request_id] = list(options.get("generated", ()))
        self.finishes.pop(request_id, None)
        if request_id not in self.expected:
            self.expected[request_id] = alone(prompt, message.sampling, eos=self.eos, max_length=self.max_length)
        return request

    @property
    def request_ids(self) -> list[int]:
        """All requests that have not ended, by number."""
        return [request.id for request in self.scheduler.requests]

    def abort(self, *request_ids: int) -> list[int]:
        ended = self.scheduler.abort(request_ids)
        for request_id in ended:
            self._finish(request_id, Finish.ABORT)
        return ended

    def start_step(self) -> StepPlan | None:
        """Plans a step, whatever is in flight, and runs it; the scheduler does not know the tokens yet."""
        plan = self.scheduler.plan()
        if plan is None:
            assert self.in_flight or not self.scheduler.has_work, "there is work and nothing moves"
            return None
        assert sum(plan.counts) <= self.budget
        self.num_steps += 1
        self.in_flight.append((plan, self.worker.run(encode(plan))))
        return plan

    def end_step(self) -> None:
        """The oldest step's tokens become known."""
        plan, tokens = self.in_flight.popleft()
        for sampled in self.scheduler.apply(plan, tokens):
            request_id = sampled.request.id
            assert request_id not in self.finishes, "a token after the end"
            self.outputs[request_id].append(sampled.token)
            if sampled.finish is not Finish.NOT_YET:
                self._finish(request_id, sampled.finish)

    def advance(self) -> bool:
        """An EngineCore's turn: as many steps leave as may be in flight, the oldest comes back. False at the end."""
        while self.scheduler.may_plan and self.start_step() is not None:
            pass
        if self.in_flight:
            self.end_step()
        return self.scheduler.has_work or bool(self.in_flight)

    def step(self) -> StepPlan | None:
        plan = self.start_step()
        if plan is not None:
            self.end_step()
        return plan

    def run(self, limit: int = 10_000) -> int:
        """Steps until nothing is left; returns how many that took."""
        steps = 0
        while self.in_flight:
            self.end_step()
        while self.step() is not None:
            steps += 1
            assert steps <= limit, "it does not end"
        return steps

    def check_outputs(self) -> None:
        """Each request generated what it generates alone, or the beginning of that if it was aborted."""
        for request_id, (tokens, finish) in self.expected.items():
            output = self.outputs[request_id]
            if self.finishes.get(request_id) is finish:
                assert output == tokens
            else:
                assert self.finishes.get(request_id) in (Finish.ABORT, None)
                assert output == tokens[: len(output)]

    def check_idle(self) -> None:
        """Every request has ended once and nothing is held any more."""
        self.check_outputs()
        assert self.finishes.keys() == self.requests.keys()
        assert not self.scheduler.has_work
        assert self.scheduler.running == self.scheduler.waiting == self.scheduler.kv_used_tokens == 0
        self.scheduler.check()

    def _finish(self, request_id: int, finish: Finish) -> None:
        assert request_id not in self.finishes, "it ended twice"
        self.finishes[request_id] = finish
