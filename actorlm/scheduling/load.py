"""What a replica has left to do, in tokens: the measure by which replicas are compared.

A prefill shares its steps with thousands of tokens; a token that is generated takes a row of a step of its own, so it
counts DECODE_COST. What a request generates beyond its next HORIZON tokens does not count: few use up their max_tokens,
and what lies that far ahead is left to later choices. Must not know: who reports, who asks.
"""

from collections.abc import Iterable
from typing import NamedTuple

from actorlm.scheduling.request import Request

DECODE_COST = 4
"""Tokens of a prefill that are as much work as one generated token."""
HORIZON = 128
"""Tokens to generate that count, of each request."""
BURST_S = 0.5
"""Requests within so many seconds may have come together: what happens between them says little about replicas."""


class Load(NamedTuple):
    """Tokens: to prefill of requests that wait and of those that run, to generate of both, and held by KV blocks."""

    waiting: int = 0
    prefill: int = 0
    decode: int = 0
    kv_used: int = 0


def near(tokens: int) -> int:
    """How many of the tokens that a request may still generate count."""
    return min(tokens, HORIZON)


def work(prefill: int, decode: int) -> int:
    """So many tokens to prefill and to generate as one number, in tokens of a prefill."""
    return prefill + DECODE_COST * decode


def measure(running: Iterable[Request], waiting: Iterable[Request], kv_used: int) -> Load:
    """The load of a replica with these requests, whose KV blocks in use hold `kv_used` tokens."""
    queued = prefill = decode = 0
    for request in running:
        known = len(request.token_ids)
        left = known - request.num_scheduled
        if left > 1:
            prefill += left
        decode += near(request.max_length - known)
    for request in waiting:
        known = len(request.token_ids)
        queued += known
        decode += near(request.max_length - known)
    return Load(queued, prefill, decode, kv_used)
