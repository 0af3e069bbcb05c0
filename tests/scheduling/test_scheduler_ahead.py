"""Several steps in flight: what a step that looks ahead may hold, and how the lanes of a pipeline share the decodes."""

from collections import Counter
from random import Random

import pytest
from test_scheduler_random import some_request

from actorlm.errors import ContextLengthExceeded
from actorlm.messages.frontend import Finish
from actorlm.scheduling.request import State


def ids(plan) -> list[int]:
    return [request.id for request in plan.requests]


def run(replica) -> None:
    while replica.advance():
        replica.scheduler.check()
    replica.check_idle()


def test_a_step_looks_ahead_of_one_in_flight_and_no_more(new_replica):
    replica = new_replica()
    replica.add(1, range(20), max_tokens=9)
    replica.step()
    first, second = replica.start_step(), replica.start_step()
    assert (first.starts, second.starts) == ([20], [21])
    assert not replica.scheduler.may_plan
    replica.end_step()
    assert replica.scheduler.may_plan
    run(replica)


def test_without_async_scheduling_one_step_is_in_flight(new_replica):
    replica = new_replica(async_scheduling=False)
    replica.add(1, range(20), max_tokens=9)
    for _ in range(4):
        replica.start_step()
        assert not replica.scheduler.may_plan
        replica.end_step()
    run(replica)


def test_nothing_is_planned_behind_a_lone_step_of_newcomers(new_replica):
    """Those who come while it runs are in the next one; beside requests that run already, newcomers wait no longer."""
    replica = new_replica()
    replica.add(1, range(20))
    replica.start_step()
    assert not replica.scheduler.may_plan
    replica.add(2, range(20))
    replica.end_step()
    assert ids(replica.start_step()) == [1, 2]
    assert replica.scheduler.may_plan
    run(replica)


def test_no_step_is_of_no_use(new_replica):
    """One by one, requests that end by length have a row for each token and not one more."""
    replica = new_replica(num_blocks=64)
    for number in range(1, 5):
        replica.add(number, range(10), max_tokens=number, ignore_eos=True)
    run(replica)
    assert replica.worker.last_step == 3
    assert replica.worker.tokens_computed == 10 + 9 * 0 + 10 * 3 + (0 + 1 + 2 + 3)


def test_what_is_sampled_after_a_stop_is_dropped(new_replica):
    replica = new_replica(eos=tuple(range(97)))
    replica.add(1, range(20), max_tokens=9, min_tokens=3)
    while replica.advance():
        replica.scheduler.check()
    assert (len(replica.outputs[1]), replica.finishes) == (3, {1: Finish.STOP})
    assert replica.worker.last_step == 3, "one step too far"
    replica.check_idle()


def test_a_block_is_found_once_its_tokens_are_known(new_replica):
    replica = new_replica(num_blocks=32)
    first = replica.add(1, range(30), max_tokens=9, ignore_eos=True)
    replica.step()
    assert first.num_shareable == 1
    replica.start_step()
    replica.start_step()  # computes token 31, the last of the second block, which is not known yet
    assert (first.num_scheduled, len(first.token_ids), first.num_shareable) == (32, 31, 1)
    replica.end_step()
    assert (len(first.token_ids), first.num_shareable) == (32, 1)
    replica.end_step()
    assert (first.num_computed, first.num_shareable) == (32, 2)
    replica.add(2, list(first.token_ids), max_tokens=1)
    replica.start_step()
    assert replica.requests[2].num_cached == 32
    replica.end_step()
    run(replica)


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_d02_under_pressure_who_looks_ahead_yields_too(new_replica, prefix_caching):
    """The last in line is always in flight: it is held back, so that it can be preempted a step later."""
    replica = new_replica(num_blocks=16, max_num_seqs=32, prefix_caching=prefix_caching)
    for request_id in range(32):
        replica.add(request_id, [request_id] * 20, max_tokens=60, ignore_eos=True)
    stalled = Counter()
    while replica.advance():
        replica.scheduler.check()
        if replica.in_flight:
            rows = {request.id for request in replica.in_flight[-1][0].requests}
            for request in replica.scheduler._running:
                stalled[request.id] = 0 if request.id in rows else stalled[request.id] + 1
                assert stalled[request.id] <= 2, "it waits for more than the step in flight"
    assert 0 < replica.scheduler.num_preemptions < 32
    assert set(replica.finishes.values()) == {Finish.LENGTH}
    replica.check_idle()


def test_who_needs_a_block_waits_for_those_of_one_that_leaves(new_replica):
    replica = new_replica(num_blocks=4, max_num_seqs=3, prefix_caching=False)
    replica.add(1, range(16), max_tokens=40, ignore_eos=True)
    replica.add(2, range(14), max_tokens=40, ignore_eos=True)
    replica.add(3, range(14), max_tokens=40, ignore_eos=True)
    replica.step()
    replica.step()
    replica.start_step()
    replica.abort(2)
    while replica.scheduler.kv_used_tokens < 64:
        plan = replica.start_step()
        assert plan is not None
    assert replica.scheduler.num_preemptions == 0
    run(replica)


@pytest.mark.parametrize("lanes", [2, 3, 4])
@pytest.mark.parametrize("running", [1, 2, 5, 8, 9])
def test_lanes_share_the_decodes_in_turns(new_replica, lanes, running):
    replica = new_replica(num_blocks=100, max_num_seqs=16, lanes=lanes)
    for number in range(running):
        replica.add(number, [number] * 5, max_tokens=60, ignore_eos=True)
    plan = replica.start_step()
    assert len(plan.requests) == running, "a prefill is not held up by other lanes"
    assert replica.start_step() is None, "all wait for their first token"
    replica.end_step()
    share, moved = -(-running // lanes), []
    for _ in range(lanes * 10):
        while replica.scheduler.may_plan and (plan := replica.start_step()):
            assert len(plan.requests) <= share
            assert all(request.num_pending == 1 for request in plan.requests)
            moved += ids(plan)
        assert len(replica.in_flight) == min(lanes, -(-running // share)), "a lane is idle"
        replica.end_step()
    turns = Counter(moved)
    assert len(turns) == running
    assert max(turns.values()) - min(turns.values()) <= 1
    run(replica)


def test_chunks_of_one_prompt_follow_each_other_through_the_lanes(new_replica):
    replica = new_replica(num_blocks=100, budget=32, lanes=3)
    replica.add(1, range(90), max_tokens=3)
    plans = [replica.start_step() for _ in range(3)]
    assert [(plan.starts, plan.counts) for plan in plans] == [([0], [32]), ([32], [32]), ([64], [26])]
    assert not replica.scheduler.may_plan
    run(replica)


def test_a_newcomer_takes_a_lane_that_is_idle(new_replica):
    replica = new_replica(lanes=2)
    replica.add(1, range(5))
    replica.step()
    assert ids(replica.start_step()) == [1]
    assert replica.start_step() is None
    replica.add(2, range(7))
    assert ids(replica.start_step()) == [2]
    run(replica)


def test_those_who_come_leave_nobody_of_a_lane_behind(new_replica):
    """Newcomers of higher priority come all the time: an old decode still moves once in as many steps as lanes."""
    replica = new_replica(num_blocks=200, max_num_seqs=8, lanes=2, policy="priority")
    old = replica.add(0, [5] * 5, max_tokens=100, ignore_eos=True)
    number = 0
    while replica.advance():
        if not number % 3 and number < 200 and old.state is State.RUNNING:
            replica.add(number + 1, [number % 90], max_tokens=4, priority=-5)
        number += 1
    assert replica.finishes[0] is Finish.LENGTH
    assert number < 100 * 2 * 2
    replica.check_idle()


@pytest.mark.parametrize("options", [{"async_scheduling": False}, {}, {"lanes": 2}, {"lanes": 4}], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_any_schedule_gives_the_same_tokens(new_replica, options, seed):
    """Arrivals, aborts, stops, shared prefixes and too few blocks: `check_outputs` compares with each request alone."""
    random = Random(seed)
    replica = new_replica(num_blocks=12, max_num_seqs=8, budget=random.choice([20, 64]), eos=(0, 1), **options)
    for number in range(150):
        prompt, sampling = some_request(random)
        sampling["priority"] = 0
        try:
            replica.add(number, prompt, **sampling)
        except ContextLengthExceeded:
            continue
        for _ in range(random.choice([0, 0, 2, 30])):
            replica.advance()
            replica.scheduler.check()
        if random.random() < 0.2:
            replica.abort(random.randrange(number + 1), random.randrange(number + 1))
            replica.scheduler.check()
    run(replica)
    assert replica.scheduler.num_preemptions > 4
    assert replica.scheduler.prefix_hits > 100
