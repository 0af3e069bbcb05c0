"""What callers may use: the limits of their keys, kept by a frontend for the requests that come to it.

A limit of so many a minute is a bucket that holds as many and fills evenly: so many may come at once, and then as many
as flow in. Tokens are taken when they are known, those of a prompt when its request begins and a generated one once it
is there, so the bucket may be overdrawn; the next request waits until it has paid. Time is an argument, in seconds.
"""

import math
from dataclasses import dataclass, field

from actorlm.api.callers import Caller
from actorlm.errors import RateLimited

MINUTE_S = 60.0
FEW = 64
"""Callers up to which none is forgotten."""


@dataclass(slots=True)
class _Bucket:
    """What is left of a limit of so many a minute; None until it was used first."""

    left: float | None = None
    at: float = 0.0

    def fill(self, limit: int, now: float) -> float:
        """What is left now."""
        flowed = limit * (now - self.at) / MINUTE_S
        self.left = float(limit) if self.left is None else min(float(limit), self.left + flowed)
        self.at = now
        return self.left

    def take(self, limit: int, amount: float, now: float) -> None:
        """So much is used."""
        self.left = self.fill(limit, now) - amount


@dataclass(slots=True)
class _Usage:
    """What one caller uses."""

    open: int = 0
    requests: _Bucket = field(default_factory=_Bucket)
    tokens: _Bucket = field(default_factory=_Bucket)
    seen_at: float = 0.0


class Quotas:
    """The usage of every caller that has asked within a minute, or that has a request open."""

    def __init__(self) -> None:
        self._usage: dict[str, _Usage] = {}
        self._look_at = FEW

    def begin(self, caller: Caller, prompt_tokens: int, now: float) -> None:
        """A request of so many prompt tokens. Raises RateLimited, naming the limit, for one too many."""
        usage = self._of(caller, now)
        _check_open(caller, usage.open)
        if caller.requests_per_minute is not None:
            _check_rate(caller, "requests_per_minute", caller.requests_per_minute, usage.requests, now)
        if caller.tokens_per_minute is not None:
            _check_rate(caller, "tokens_per_minute", caller.tokens_per_minute, usage.tokens, now)
        usage.open += 1
        if caller.requests_per_minute is not None:
            usage.requests.take(caller.requests_per_minute, 1, now)
        self.spend(caller, prompt_tokens, now)

    def spend(self, caller: Caller, tokens: int, now: float) -> None:
        """A request of this caller has used so many tokens."""
        if caller.tokens_per_minute is not None:
            self._of(caller, now).tokens.take(caller.tokens_per_minute, tokens, now)

    def end(self, caller: Caller, now: float) -> None:
        """A request that has begun has ended."""
        self._of(caller, now).open -= 1

    def _of(self, caller: Caller, now: float) -> _Usage:
        usage = self._usage.get(caller.name)
        if usage is None:
            self._forget(now)
            usage = self._usage[caller.name] = _Usage()
        usage.seen_at = now
        return usage

    def _forget(self, now: float) -> None:
        """Who has nothing open and has used nothing for a minute has full buckets, or nearly so."""
        if len(self._usage) >= self._look_at:
            recent = {name: one for name, one in self._usage.items() if one.open or now - one.seen_at < MINUTE_S}
            self._usage, self._look_at = recent, FEW + 2 * len(recent)


def _check_open(caller: Caller, count: int) -> None:
    if caller.max_requests is not None and count >= caller.max_requests:
        raise RateLimited(f"{count} requests of {caller.name} are open, and its max_requests is {caller.max_requests}")


def _check_rate(caller: Caller, name: str, limit: int, bucket: _Bucket, now: float) -> None:
    """One must be left; so long as it is not, it is known when it will be."""
    left = bucket.fill(limit, now)
    if left < 1:
        seconds = max(1, math.ceil((1 - left) * MINUTE_S / limit))
        raise RateLimited(
            f"{caller.name} has used up its {name}, {limit}; try again in {seconds} s", retry_after=seconds
        )
