"""The requests that a frontend has open: in whose name, within which limits, and until when.

A deadline is the frontend's to keep, because the request is its own: it ends the request, wherever that waits or runs,
on one clock. Must not know: what becomes of choices.
"""

import asyncio
from asyncio import TimerHandle
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actorlm.actors.generation import Choice, Generation
from actorlm.api.callers import Caller
from actorlm.api.ports import Envelope, Submission
from actorlm.api.quotas import Quotas
from actorlm.errors import ActorlmError, DeadlineExceeded


@dataclass(slots=True)
class _Entry:
    """One request. `left` counts its choices that go on."""

    caller: Caller
    left: int
    deadline: TimerHandle | None


class Ledger:
    """`request_timeout_s` is the longest that a request may take; 0 is any time. `end` ends one with an error."""

    def __init__(self, request_timeout_s: float, end: Callable[[Generation, ActorlmError], None]) -> None:
        self._longest_s = request_timeout_s
        self._end = end
        self._quotas = Quotas()
        self._entries: dict[Generation, _Entry] = {}

    def open(self, generation: Generation, submissions: Sequence[Submission], envelope: Envelope, now: float) -> None:
        """A request begins. Raises RateLimited if it is one too many of its caller."""
        prompts = {id(one.prompt_ids): len(one.prompt_ids) for one in submissions}  # choices of one prompt share it
        self._quotas.begin(envelope.caller, sum(prompts.values()), now)
        seconds = min((one for one in (envelope.timeout_s, self._longest_s) if one), default=None)
        timer = None
        if seconds is not None:
            error = DeadlineExceeded(f"the request has not ended within {seconds:g} s")
            timer = asyncio.get_running_loop().call_later(seconds, self._end, generation, error)
        self._entries[generation] = _Entry(envelope.caller, len(submissions), timer)

    def close(self, choice: Choice, tokens: int, now: float) -> None:
        """One of its choices has ended, having got so many tokens."""
        entry = self._entries[choice.generation]
        self._quotas.spend(entry.caller, tokens, now)
        entry.left -= 1
        if not entry.left:
            del self._entries[choice.generation]
            self._quotas.end(entry.caller, now)
            if entry.deadline is not None:
                entry.deadline.cancel()
