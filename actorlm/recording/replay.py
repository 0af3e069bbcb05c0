"""Feeds a recording to a scheduler, step by step, and finds the first decision that is another one. Pure.

Only the scheduler's own code decides: what is in the file is what it was asked and what the model answered.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import assert_never

from actorlm.errors import ActorlmError, ProtocolError
from actorlm.messages.executor import StepDone
from actorlm.recording.records import NOTHING, Aborted, Admitted, Ended, Header, Planned, Record, Took, planned
from actorlm.scheduling.core import Core, Step
from actorlm.scheduling.request import Request
from actorlm.scheduling.scheduler import Scheduler
from actorlm.wire import read_int32, read_int64

COLUMNS = ("step", "released", "added", "block_slots", "block_ids", "slots", "starts", "counts", "sampled")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision that is another one: of record `record` (from 0), while `step` was to be planned or taken in.

    `lines` tell what was recorded and what is now.
    """

    record: int
    step: int
    lines: tuple[str, ...]


@dataclass(slots=True)
class Totals:
    """What was replayed so far. `ended` is why the recording stopped by itself, if it did."""

    records: int = 0
    steps: int = 0
    requests: int = 0
    tokens: int = 0
    seconds: float = 0.0
    ended: str = ""


class Replay:
    """A scheduler as it was when the recording began. With `check` it proves its accounts after each step."""

    def __init__(self, header: Header, *, check: bool = True) -> None:
        self.scheduler = Scheduler(
            header.scheduler,
            num_blocks=header.num_blocks,
            max_model_len=header.max_model_len,
            eos_token_ids=header.eos_token_ids,
            prefix_caching=header.prefix_caching,
            lanes=header.lanes,
        )
        self._core = Core(self.scheduler, header.vocab_size)
        self._check = check
        self._in_flight: deque[Step] = deque()
        self._step = 0
        self.totals = Totals()

    @property
    def steps_in_flight(self) -> list[int]:
        """The numbers of the steps that have been planned and not come back."""
        return [step.plan.step for step in self._in_flight]

    def run(self, records: Iterable[Record], until_step: int | None = None) -> Difference | None:
        """Does all of it, or all until the step of this number has been planned."""
        for number, record in enumerate(records):
            lines = self._tell(record)
            if lines:
                return Difference(number, self._step, tuple(lines))
            self.totals.records, self.totals.seconds = number + 1, record.at
            if until_step is not None and isinstance(record, Planned) and record.step == until_step:
                return None
        return None

    def _tell(self, record: Record) -> list[str]:
        """What was recorded and what is now, where they differ. A fault of the scheduler is a difference, too."""
        try:
            return list(self._do(record))
        except (AssertionError, ProtocolError, LookupError, ValueError) as error:
            return [f"{type(record).__name__} raises {type(error).__name__}: {error}"]

    def _do(self, record: Record) -> Iterator[str]:
        match record:
            case Admitted():
                yield from self._admit(record)
            case Aborted():
                self._core.abort(read_int64(record.requests))
            case Planned():
                yield from self._plan(record)
            case Took():
                yield from self._take(record)
            case Ended():
                self.totals.ended = record.reason
            case _:
                assert_never(record)

    def _admit(self, record: Admitted) -> Iterator[str]:
        refusal = None
        try:
            self._core.admit(record.message)
        except ActorlmError as error:
            refusal = str(error.code)
        self.totals.requests += 1
        yield from _compare(f"refusal of request {record.message.request}", record.refusal, refusal)

    def _plan(self, record: Planned) -> Iterator[str]:
        self._step = record.step if record.step != NOTHING else self._step
        if not self.scheduler.may_plan:
            yield "a step was planned here; now enough are in flight"
            return
        step = self._core.next_step()
        if step is not None:
            self._in_flight.append(step)
            self.totals.steps += 1
        now = planned(step.plan if step else None, record.at)
        for column in COLUMNS:
            yield from _compare(column, _shown(record, column), _shown(now, column))
        self._prove()

    def _take(self, record: Took) -> Iterator[str]:
        self._step = record.step
        if not self._in_flight or self._in_flight[0].plan.step != record.step:
            yield f"step {record.step} came back; now these are in flight: {self.steps_in_flight}"
            return
        step = self._in_flight.popleft()
        self._core.take(step, StepDone(record.step, record.tokens, 0))
        self.totals.tokens += len(record.tokens) // 4
        self._prove()

    def _prove(self) -> None:
        if self._check:
            self.scheduler.check()


def describe(request: Request) -> tuple[str, ...]:
    """A request as its scheduler sees it: id, attempt, state, slot, rank, tokens, computed, preemptions, blocks."""
    blocks = " ".join(map(str, request.blocks))
    numbers = (len(request.token_ids), request.prompt_length, request.num_computed, request.num_preemptions)
    rank = ".".join(map(str, request.rank))
    return (str(request.id), str(request.attempt), request.state.value, str(request.slot), rank,
            *map(str, numbers), blocks)  # fmt: skip


def _compare(name: str, recorded: object, now: object) -> Iterator[str]:
    if recorded != now:
        yield f"{name}: recorded {recorded}, now {now}"


def _shown(record: Planned, column: str) -> object:
    value = getattr(record, column)
    return list(read_int32(value)) if isinstance(value, bytes) else value
