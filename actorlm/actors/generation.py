"""What a frontend keeps of a request: each of its choices, and the reader that waits for more of them."""

import asyncio
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from actorlm.api.callers import ANYBODY, Caller
from actorlm.api.ports import Delta, FinishReason, Placement, Submission
from actorlm.errors import ActorlmError
from actorlm.logprobs import Scores, joined

NOWHERE = -1
"""The detokenizer of a choice whose text is not open yet."""

MAX_UNREAD_BYTES = 2**20
UNREAD_S = 5.0
"""A reader that reads nothing for so long, while more than MAX_UNREAD_BYTES wait for it, is left behind."""
MOST_UNREAD_BYTES = 2**25
"""So is one for which more than this waits, however steadily it reads."""


class Phase(Enum):
    """How far an attempt has got: to no detokenizer, asked for one, has one, was sent to an engine."""

    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    SENT = "sent"


@dataclass(slots=True, eq=False)
class Choice:
    """One choice: a request of its own for everything behind the frontend.

    `ids` and `characters` of text were delivered; the next attempt goes on behind them. `deaths` counts those of its
    replica since its last token.
    """

    id: int
    index: int
    submission: Submission
    detokenizer: int
    created_at: float
    generation: "Generation"
    trace_id: str
    placement: Placement
    caller: Caller = ANYBODY
    attempt: int = 0
    phase: Phase = Phase.CLOSED
    ids: "array[int]" = field(default_factory=lambda: array("i"))
    characters: int = 0
    deaths: int = 0
    is_suspect: bool = False
    cached: int | None = None
    """Of the prompt, from the prefix cache, as it was when the first token came."""
    first_token_at: float | None = None
    last_token_at: float | None = None
    scored: int = 1
    """The first position of the prompt whose log-probabilities have not come."""

    def take_text(self, text: str, ids: bytes, cached: int) -> int:
        """Notes what is delivered; returns how much of the prompt was cached, the same in every attempt."""
        self.characters += len(text)
        self.ids.frombytes(ids)
        if self.cached is None and ids:
            self.cached = cached
        return cached if self.cached is None else self.cached

    def take_scores(self, scores: Scores | None) -> Scores | None:
        """Drops what has come already: after a preemption or in a later attempt a prompt is computed again."""
        if scores is None or not len(scores.prompt):
            return scores
        scores.forget_prompt(self.scored)
        self.scored = max(self.scored, scores.end)
        return scores


class Generation:
    """All choices of one request; implements `api.ports.Generation`.

    Deltas that nobody has taken yet are merged, so a slow reader costs memory in proportion to its text; one that
    falls too far behind is to be failed.
    """

    def __init__(self, abort: Callable[[Sequence[Choice]], None]) -> None:
        self._abort = abort
        self._going_on: dict[int, Choice] = {}
        self._fresh: dict[int, Delta] = {}
        self._unread_bytes = 0
        self._busy_since: float | None = None
        self._error: ActorlmError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def begin(self, choices: Iterable[Choice]) -> None:
        """These choices go on from now."""
        self._going_on = {choice.index: choice for choice in choices}

    def feed(self, delta: Delta) -> None:
        """Takes what one choice gained."""
        before = self._fresh.get(delta.choice)
        self._fresh[delta.choice] = delta if before is None else merged(before, delta)
        self._unread_bytes += delta.size
        if delta.finish:
            self._going_on.pop(delta.choice, None)
        self._wake()

    def is_left_behind(self, now: float) -> bool:
        """Whether too much waits for a reader that is busy with what it took, and has not read on till `now`."""
        if self._unread_bytes <= MAX_UNREAD_BYTES or self._busy_since is None or not self._going_on:
            return False
        return now - self._busy_since > UNREAD_S or self._unread_bytes > MOST_UNREAD_BYTES

    def read_on(self) -> None:
        """See `api.ports.Generation`."""
        if self._busy_since is not None:
            self._busy_since = time.monotonic()

    def fail(self, error: ActorlmError) -> list[Choice]:
        """Ends the request with an error, after what has come already; returns the choices that were still going on."""
        self._error = self._error or error
        self._wake()
        return self._end()

    def abort(self) -> None:
        """Nobody wants more of any choice."""
        left = self._end()
        self._wake()
        if left:
            self._abort(left)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[Delta]:
        """What is new. Raises the error that ended the request."""
        self._busy_since = None
        while not self._fresh:
            if self._error is not None:
                raise self._error
            if not self._going_on:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        fresh, self._fresh, self._unread_bytes = self._fresh, {}, 0
        self._busy_since = time.monotonic()
        return tuple(fresh.values())

    def _end(self) -> list[Choice]:
        left = list(self._going_on.values())
        self._going_on = {}
        return left

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def merged(before: Delta, after: Delta) -> Delta:
    """What one choice gained in two steps, as one delta."""
    finish: FinishReason | None = after.finish
    tokens, cached = before.tokens + after.tokens, max(before.cached_tokens, after.cached_tokens)
    ids, scores = before.ids + after.ids, joined(before.scores, after.scores)
    return Delta(before.choice, before.text + after.text, tokens, finish, cached, ids, scores)
