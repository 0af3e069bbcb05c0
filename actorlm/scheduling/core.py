"""What lies between a scheduler and the workers of its replica: requests are checked, plans encoded, answers taken in.

Owns: the scheduler, and the count of steps and tokens. Pure, so that the EngineCore actor and the offline `LLM` are two
shells around one object. Must not know: sockets, text, who runs a step and where.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from actorlm.errors import ActorlmError
from actorlm.logprobs import Logprobs, Scores, unpack
from actorlm.messages.engine import Generate
from actorlm.messages.executor import StepDone
from actorlm.messages.frontend import Finish
from actorlm.messages.worker import RunStep
from actorlm.sampling import check_sampling, check_token
from actorlm.scheduling.plan import StepPlan, encode
from actorlm.scheduling.request import Request, State
from actorlm.scheduling.scheduler import Sampled, Scheduler
from actorlm.wire import read_int32


class Step(NamedTuple):
    """A step to run: `message` goes to the workers, `plan` comes back with their answer."""

    plan: StepPlan
    message: RunStep


class Gain(NamedTuple):
    """What the requests that still go on gained in a step: tokens, or none but scores; and those scores, if any."""

    sampled: list[Sampled]
    scores: Mapping[Request, Scores]


class Witness(Protocol):
    """Is told of all that goes into a core and comes out of it, when it has happened or failed. Changes nothing."""

    def admitted(self, message: Generate, refusal: ActorlmError | None) -> None:
        """A request was accepted, or refused."""

    def aborted(self, requests: Sequence[int], ended: Sequence[int]) -> None:
        """An abort of `requests` has ended these."""

    def planned(self, plan: StepPlan | None) -> None:
        """A step was planned, or none for want of something to compute."""

    def took(self, step: Step, done: StepDone, gain: Gain) -> None:
        """The answer to a step was taken in."""


class Core:
    """The scheduler of one replica, whose model has the token ids 0 to `vocab_size` - 1, and what drives it.

    `witnesses` are told of everything, in their order: what else may decide something, a time say, comes as an argument
    of these methods and is told to them, or no recording replays.
    """

    def __init__(self, scheduler: Scheduler, vocab_size: int, witnesses: Sequence[Witness] = ()) -> None:
        self.scheduler = scheduler
        self.steps = 0
        self.tokens = 0
        self._vocab_size = vocab_size
        self._witnesses = witnesses

    def admit(self, message: Generate) -> Request:
        """Accepts a request, which then ends exactly once. Raises ActorlmError for one that cannot be served."""
        refusal: ActorlmError | None = None
        try:
            return self._admit(message)
        except ActorlmError as error:
            refusal = error
            raise
        finally:
            for witness in self._witnesses:
                witness.admitted(message, refusal)

    def _admit(self, message: Generate) -> Request:
        check_sampling(message.sampling, self._vocab_size, self.scheduler.eos_token_ids)
        for ids in map(read_int32, filter(None, (message.prompt_ids, message.generated_ids))):
            check_token("prompt", min(ids), self._vocab_size)
            check_token("prompt", max(ids), self._vocab_size)
        request = Request.from_generate(message)
        self.scheduler.add(request)
        return request

    def abort(self, requests: Iterable[int]) -> list[int]:
        """Ends requests in whatever phase they are; returns those that ended now. Unknown ids have ended before."""
        asked = list(requests)
        ended = self.scheduler.abort(asked)
        for witness in self._witnesses:
            witness.aborted(asked, ended)
        return ended

    def next_step(self) -> Step | None:
        """The next step, or None when there is nothing to compute now, or enough is in flight."""
        if not self.scheduler.may_plan:
            return None
        plan: StepPlan | None = None
        try:
            plan = self.scheduler.plan()
        finally:
            for witness in self._witnesses:
                witness.planned(plan)
        return None if plan is None else Step(plan, encode(plan))

    def take(self, step: Step, done: StepDone) -> Gain:
        """Takes in the answer to the oldest step that has none. Raises ProtocolError for one that does not fit it."""
        gain = Gain([], {})
        try:
            gain = self._take(step, done)
        finally:
            for witness in self._witnesses:
                witness.took(step, done, gain)
        return gain

    def _take(self, step: Step, done: StepDone) -> Gain:
        scores = {} if done.logprobs is None else _scores(step.plan, done.logprobs)
        sampled = self.scheduler.apply(step.plan, read_int32(done.tokens))
        self.steps += 1
        self.tokens += sum(step.plan.counts)
        return Gain(sampled + self._scored_alone(scores, sampled) if scores else sampled, scores)

    def _scored_alone(self, scores: Mapping[Request, Scores], sampled: list[Sampled]) -> list[Sampled]:
        """Rows of requests that gained scores of their prompts and no token."""
        moved = {one.request for one in sampled}
        return [
            Sampled(request, None, Finish.NOT_YET)
            for request in scores
            if request not in moved and request.state is State.RUNNING
        ]


def _scores(plan: StepPlan, logprobs: Logprobs) -> dict[Request, Scores]:
    """What a step says of its requests. Raises ProtocolError for other rows than the plan's."""
    logprobs.check(len(plan.requests))
    rows = zip(plan.requests, unpack(logprobs), strict=True)
    return {request: scores for request, scores in rows if scores is not None}
