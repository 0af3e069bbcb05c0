"""A replica that advances by one step a call: scheduler, worker and text streams, with nothing between them.

Owns: the requests in the scheduler and their text so far, and the steps in flight: while the worker computes one, the
next waits behind it, and the text of the one before is made. Takes submissions, gives the choices that ended. Knows
no socket and no event loop; it is for one caller at a time.
"""

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from actorlm.api.ports import FINISH_REASONS, FinishReason, Submission
from actorlm.logprobs import Scores, joined
from actorlm.messages.engine import Generate
from actorlm.messages.executor import StepDone
from actorlm.messages.frontend import Finish
from actorlm.offline.logprobs import Place, places, total
from actorlm.offline.worker_thread import WorkerThread
from actorlm.scheduling.core import Core, Gain, Step
from actorlm.scheduling.request import Request
from actorlm.scheduling.scheduler import Sampled
from actorlm.text.detokenize import CONTEXT_LENGTH, Piece, TextStream
from actorlm.text.tokenizer import Tokenizer
from actorlm.wire import int32


class EndedChoice(NamedTuple):
    """A choice that has ended. `cached_tokens` counts the prompt tokens that came from the prefix cache."""

    request: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None
    cached_tokens: int
    cumulative_logprob: float | None = None
    logprobs: list[Place] | None = None
    prompt_logprobs: list[Place | None] | None = None


class Advance(NamedTuple):
    """What one step gave: how many new tokens, and the choices that ended with it."""

    tokens: int
    ended: list[EndedChoice]


@dataclass(slots=True)
class _Choice:
    submission: Submission
    stream: TextStream
    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    scores: Scores | None = None


class Engine:
    """One replica. `eos_token_ids` are the model's own ends of text."""

    def __init__(self, core: Core, worker: WorkerThread, tokenizer: Tokenizer, eos_token_ids: Iterable[int]) -> None:
        self._core = core
        self._worker = worker
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._choices: dict[int, _Choice] = {}
        self._in_flight: deque[tuple[Step, Future[StepDone]]] = deque()

    def advance(self, submissions: Iterable[tuple[int, Submission]]) -> Advance:
        """Takes in new requests, by numbers that are used once, and one step of all that go on.

        Raises ExecutorFailed, now and ever after, once the worker has failed.
        """
        for request, submission in submissions:
            self._admit(request, submission)
        while (step := self._core.next_step()) is not None:
            self._in_flight.append((step, self._worker.start(step.message)))
        if not self._in_flight:
            assert not self._choices, "choices are open and there is no step to run"
            return Advance(0, [])
        sampled, scores = self._end_step()
        ended = [self._learn(one, scores.get(one.request)) for one in sampled]
        return Advance(sum(one.token is not None for one in sampled), [one for one in ended if one is not None])

    def abort_all(self) -> None:
        """Ends all that goes on, without a result, and waits for the steps in flight. Raises ExecutorFailed."""
        self._core.scheduler.abort(list(self._choices))
        self._choices.clear()
        while self._in_flight:
            self._end_step()

    def close(self) -> None:
        """Ends the worker's thread, after the step that runs."""
        self._worker.close()

    def _end_step(self) -> Gain:
        step, running = self._in_flight[0]
        done = running.result()
        self._in_flight.popleft()
        return self._core.take(step, done)

    def _admit(self, request: int, submission: Submission) -> None:
        message = Generate(request, 0, "", 0, int32(submission.prompt_ids), b"", submission.sampling)
        self._core.admit(message)
        stream = TextStream(
            self._tokenizer,
            context_ids=submission.prompt_ids[-CONTEXT_LENGTH:],
            stop=submission.stop,
            include_stop=submission.include_stop,
            skip_special_tokens=submission.skip_special_tokens,
            spaces_between_special_tokens=submission.spaces_between_special_tokens,
        )
        self._choices[request] = _Choice(submission, stream)

    def _learn(self, sampled: Sampled, scores: Scores | None) -> EndedChoice | None:
        request, token = sampled.request, sampled.token
        choice = self._choices[request.id]
        choice.scores = joined(choice.scores, scores)
        if token is None:
            return None
        choice.token_ids.append(token)
        piece = choice.stream.push((token,), sampled.finish)
        choice.texts.append(piece.text)
        if piece.finish is Finish.NOT_YET:
            return None
        del self._choices[request.id]
        if piece.finish is Finish.STOP_STRING:
            self._core.scheduler.abort([request.id])
        return self._ended(request, choice, piece)

    def _ended(self, request: Request, choice: _Choice, piece: Piece) -> EndedChoice:
        sampling, scores = choice.submission.sampling, choice.scores or Scores()
        scored, prompt_scored = sampling.scores_output, sampling.prompt_logprobs is not None
        return EndedChoice(
            request=request.id,
            text="".join(choice.texts),
            token_ids=choice.token_ids,
            finish_reason=FINISH_REASONS[piece.finish],
            stop_reason=self._stop_reason(choice, piece),
            cached_tokens=request.num_cached,
            cumulative_logprob=total(scores.output) if scored else None,
            logprobs=places(scores.output, sampling.logprobs or 0, self._tokenizer) if scored else None,
            prompt_logprobs=[None, *places(scores.prompt, sampling.prompt_logprobs or 0, self._tokenizer)]
            if prompt_scored
            else None,
        )

    def _stop_reason(self, choice: _Choice, piece: Piece) -> str | int | None:
        if piece.finish is not Finish.STOP:
            return piece.stop
        sampling, last = choice.submission.sampling, choice.token_ids[-1]
        own = last in self._eos_token_ids and not sampling.ignore_eos
        return None if own else last
