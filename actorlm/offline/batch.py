"""The prompts of one call: which of their choices are in the engine, and which prompts are complete."""

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from actorlm.api.ports import Submission
from actorlm.offline.engine import EndedChoice
from actorlm.offline.outputs import CompletionOutput, RequestOutput


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and its choices. `index` is its place among the prompts of the call."""

    index: int
    request_id: str
    prompt: str | None
    prompt_ids: list[int]
    choices: list[Submission]


class Batch:
    """Jobs, taken from an iterator as there is room: at most `window` choices are in the engine.

    `numbers` are the engine's numbers for choices, each used once.
    """

    def __init__(self, jobs: Iterable[Job], numbers: Iterator[int], window: int) -> None:
        self._waiting = ((job, choice) for job in jobs for choice in range(len(job.choices)))
        self._numbers = numbers
        self._window = window
        self._open: dict[int, tuple[Job, int]] = {}
        self._ended: dict[int, dict[int, EndedChoice]] = {}

    @property
    def is_open(self) -> bool:
        """Whether choices are in the engine."""
        return bool(self._open)

    def refill(self) -> list[tuple[int, Submission]]:
        """The next choices for the engine, with their numbers."""
        fresh = []
        for job, choice in islice(self._waiting, self._window - len(self._open)):
            number = next(self._numbers)
            self._open[number] = job, choice
            fresh.append((number, job.choices[choice]))
        return fresh

    def take(self, ended: Iterable[EndedChoice]) -> list[tuple[Job, RequestOutput]]:
        """The prompts that are complete with these choices."""
        complete = []
        for one in ended:
            job, choice = self._open.pop(one.request)
            choices = self._ended.setdefault(job.index, {})
            choices[choice] = one
            if len(choices) == len(job.choices):
                complete.append((job, _output(job, self._ended.pop(job.index))))
        return complete


def _output(job: Job, ended: dict[int, EndedChoice]) -> RequestOutput:
    return RequestOutput(
        request_id=job.request_id,
        prompt=job.prompt,
        prompt_token_ids=job.prompt_ids,
        outputs=[_completion(index, ended[index]) for index in range(len(job.choices))],
        num_cached_tokens=ended[0].cached_tokens,
        prompt_logprobs=ended[0].prompt_logprobs,
    )


def _completion(index: int, ended: EndedChoice) -> CompletionOutput:
    return CompletionOutput(
        index=index,
        text=ended.text,
        token_ids=ended.token_ids,
        finish_reason=ended.finish_reason,
        stop_reason=ended.stop_reason,
        cumulative_logprob=ended.cumulative_logprob,
        logprobs=ended.logprobs,
    )
