"""The limits of callers, by a clock that the test moves: never exceeded, and refilled as they say."""

import contextlib

import hypothesis.strategies as st
import pytest
from hypothesis import given

from actorlm.api.callers import ANYBODY, Caller
from actorlm.api.quotas import FEW, MINUTE_S, Quotas
from actorlm.errors import RateLimited


def refusal(quotas, caller, now, prompt_tokens=1):
    with pytest.raises(RateLimited) as caught:
        quotas.begin(caller, prompt_tokens, now)
    return caught.value


def test_requests_that_are_open_are_limited():
    quotas, caller = Quotas(), Caller(name="alice", max_requests=2)
    for _ in range(2):
        quotas.begin(caller, 1, 0.0)
    error = refusal(quotas, caller, 1000.0)
    assert error.message == "2 requests of alice are open, and its max_requests is 2"
    assert (error.status, error.code, error.retry_after) == (429, "rate_limit_exceeded", 1)
    quotas.begin(Caller(name="bob", max_requests=1), 1, 0.0)
    quotas.end(caller, 1000.0)
    quotas.begin(caller, 1, 1000.0)


def test_requests_flow_in_evenly_and_the_time_to_wait_is_true():
    quotas, caller = Quotas(), Caller(name="alice", requests_per_minute=6)
    for _ in range(6):
        quotas.begin(caller, 1, 0.0)
    error = refusal(quotas, caller, 3.0)
    assert "requests_per_minute, 6; try again in 7 s" in error.message
    assert error.retry_after == 7
    quotas.begin(caller, 1, 3.0 + error.retry_after)
    assert refusal(quotas, caller, 10.0).retry_after == 10


def test_tokens_count_when_they_are_known_and_may_be_overdrawn():
    quotas, caller = Quotas(), Caller(name="alice", tokens_per_minute=60)
    quotas.begin(caller, 59, 0.0)
    quotas.begin(caller, 1000, 0.0)
    error = refusal(quotas, caller, 0.0)
    assert "tokens_per_minute, 60" in error.message
    assert error.retry_after == 1000
    quotas.spend(caller, 60, 10.0)
    assert refusal(quotas, caller, 1000.0).retry_after == 60
    quotas.begin(caller, 1, 1060.0)


@given(st.integers(1, 50), st.lists(st.floats(0.0, 20.0), max_size=200))
def test_no_more_than_the_limit_and_what_flowed_in(limit, pauses):
    quotas, caller, now, begun = Quotas(), Caller(name="a", requests_per_minute=limit), 0.0, 0
    for pause in pauses:
        now += pause
        with contextlib.suppress(RateLimited):
            quotas.begin(caller, 1, now)
            begun += 1
    assert begun <= limit * (1 + now / MINUTE_S) + 1e-6


def test_a_limit_that_is_lowered_holds_at_once():
    quotas = Quotas()
    quotas.begin(Caller(name="a", requests_per_minute=100), 1, 0.0)
    lowered = Caller(name="a", requests_per_minute=2)
    for _ in range(2):
        quotas.begin(lowered, 1, 0.0)
    refusal(quotas, lowered, 0.0)


def test_who_has_no_limits_is_never_refused_and_nobody_is_kept_for_ever():
    quotas = Quotas()
    for number in range(10 * FEW):
        quotas.begin(ANYBODY, 10**9, float(number))
        visitor = Caller(name=str(number), tokens_per_minute=1)
        quotas.begin(visitor, 5, 2.0 * number)
        quotas.end(visitor, 2.0 * number)
    assert len(quotas._usage) <= FEW + 2 * MINUTE_S
