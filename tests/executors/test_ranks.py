"""Which ranks owe a step, and what is said of them."""

import pytest

from actorlm.executors.ranks import Ranks


@pytest.fixture
def ranks():
    made = Ranks(["worker-0-0", "worker-0-1", "worker-0-2"], step_timeout_s=50, tick_s=2)
    for rank in range(3):
        made.introduced(rank, "host", 100 + rank)
    return made


def ticks(ranks, count):
    return [ranks.tick() for _ in range(count)]


def test_who_owes_nothing_is_never_late(ranks):
    assert ticks(ranks, 100) == [([], False)] * 100


def test_warnings_come_at_a_fifth_of_the_timeout_and_then_ever_later(ranks):
    ranks.begun(0)
    ranks.heard(0, 0, "idle")
    ranks.heard(2, 0, "idle")
    warned = [2 * (index + 1) for index, (late, over) in enumerate(ticks(ranks, 24)) if late == [1] and not over]
    assert warned == [10, 20, 40]
    assert ranks.tick() == ([1], True)


def test_progress_counts_from_the_step_that_it_ends(ranks):
    for step in range(100):
        ranks.begun(step)
        for rank in range(3):
            ranks.heard(rank, step - 1, f"step {step}")
        assert ranks.tick() == ([], False)


def test_a_pause_is_not_counted_before_the_next_step(ranks):
    ranks.begun(0)
    for rank in range(3):
        ranks.heard(rank, 0, "idle")
    ticks(ranks, 1000)
    ranks.begun(1)
    assert ticks(ranks, 4) == [([], False)] * 4


def test_a_short_timeout_waits_for_the_next_heartbeats():
    ranks = Ranks(["worker-0-0"], step_timeout_s=0.1, tick_s=2)
    ranks.begun(0)
    assert ticks(ranks, 3) == [([], False), ([], False), ([0], True)]


def test_who_is_furthest_behind_comes_first(ranks):
    ranks.begun(7)
    ranks.heard(0, 6, "step 7")
    ranks.heard(1, 6, "step 7")
    ranks.heard(2, 5, "step 6")
    ticks(ranks, 5)
    ranks.heard(0, 6, "step 7")
    assert ranks.describe([0, 2]) == (
        "rank 2 on host (pid 102), last answer 10 s ago, then: step 6;"
        " rank 0 on host (pid 100), last answer 10 s ago, then: step 7"
    )


def test_a_worker_that_never_came_is_named():
    assert Ranks(["worker-3-0"], step_timeout_s=1, tick_s=1).describe([0]) == (
        "rank 0 (worker-3-0), which has not started yet"
    )
