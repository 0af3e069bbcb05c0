"""Who is alive: heard, and doing some of what there is to do."""

import pytest

from actorlm.runtime.watch import Patience, Report, Watch

PATIENCE = Patience(tick_s=2.0, silence_ticks=5, stall_ticks=10)


def _watch(*heartbeats):
    """The first reason to kill a child that says this before each tick, and how many ticks it took."""
    watch = Watch(PATIENCE)
    for count, reports in enumerate(heartbeats, start=1):
        if reports is not None:
            watch.heard([Report(*one) for one in reports])
        if why := watch.tick():
            return count, why
    return None


def test_silence_is_counted_in_ticks():
    assert _watch(*[None] * 5) == (5, "silent for 10 s (--heartbeat-timeout-s)")
    assert _watch(*[None] * 4, [], *[None] * 3) is None


def test_whoever_does_nothing_though_something_waits_is_stuck():
    why = "2 requests waited for 20 s and none was dealt with (--stall-timeout-s)"
    assert _watch(*[[("requests", 2, 7)]] * 30) == (10, why)


@pytest.mark.parametrize(
    "heartbeats",
    [
        pytest.param([[("messages", 60_000, done)] for done in range(30)], id="a busy actor, however much waits"),
        pytest.param([[("messages", 0, 7)]] * 30, id="an idle one"),
        pytest.param([*[[("messages", 1, 7)]] * 9, [("messages", 1, 8)]] * 3, id="a slow one"),
        pytest.param([*[[("messages", 1, 7)]] * 9, [("messages", 0, 7)]] * 3, id="one whose work went away"),
        pytest.param([*[[("messages", 1, 7)]] * 9, []] * 3, id="one that has the duty no more"),
        pytest.param([[("messages", 1, done), ("steps", 0, 0)] for done in range(30)], id="of two duties one is none"),
    ],
)
def test_who_is_healthy(heartbeats):
    assert _watch(*heartbeats) is None


def test_one_duty_does_not_excuse_another():
    """An engine that goes on with its steps and reads no mail."""
    count, why = _watch(*([("messages", 4, 7), ("steps", 9, done)] for done in range(30)))
    assert count == 10
    assert "4 messages" in why


def test_a_stall_goes_on_through_lost_heartbeats():
    stuck = [("messages", 1, 7)]
    assert _watch(*[stuck, None] * 30)[0] == 10


def test_a_reason_is_given_once():
    watch = Watch(PATIENCE)
    assert sum(bool(watch.tick()) for _ in range(30)) == 1
