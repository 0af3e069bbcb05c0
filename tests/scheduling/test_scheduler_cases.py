"""Cases from the field, each at the size of a unit test."""

from random import Random

import pytest

from actorlm.errors import ContextLengthExceeded
from actorlm.messages.frontend import Finish
from actorlm.scheduling.request import State


def test_b21_aborted_waiting_requests_are_gone_at_once(new_replica):
    replica = new_replica(max_num_seqs=1, num_blocks=64)
    replica.add(0, [1], max_tokens=500, ignore_eos=True)
    for request_id in range(1, 101):
        replica.add(request_id, [request_id])
    replica.start_step()
    assert replica.scheduler.waiting == 100
    assert replica.abort(*range(1, 101)) == list(range(1, 101))
    assert (replica.scheduler.running, replica.scheduler.waiting) == (1, 0)
    replica.run()
    assert replica.finishes[0] is Finish.LENGTH


@pytest.mark.parametrize("max_tokens", [1, 5000])
def test_c14_a_prompt_just_below_the_context_gets_one_token(new_replica, max_tokens):
    replica = new_replica(max_model_len=64)
    replica.add(1, range(63), max_tokens=max_tokens)
    for length in (64, 65):
        with pytest.raises(ContextLengthExceeded, match=f"{length} tokens and a sequence at most 64"):
            replica.add(2, range(length), max_tokens=max_tokens)
    replica.run()
    assert (len(replica.outputs[1]), replica.finishes) == (1, {1: Finish.LENGTH})


def test_d01_what_never_fits_is_refused_and_what_outgrows_the_cache_ends(new_replica):
    replica = new_replica(num_blocks=8, max_model_len=1024)
    with pytest.raises(ContextLengthExceeded, match="200 tokens and the KV cache holds 128"):
        replica.add(1, range(200), max_tokens=500)
    replica.add(2, range(100), max_tokens=500)
    replica.add(3, range(5), max_tokens=5)
    assert replica.run() < 60
    assert replica.finishes == {2: Finish.LENGTH, 3: Finish.LENGTH}
    assert len(replica.requests[2].token_ids) == 129
    replica.check_idle()


def test_d01_a_prompt_may_fill_the_whole_cache(new_replica):
    replica = new_replica(num_blocks=8, max_model_len=1024)
    replica.add(1, range(128), max_tokens=500)
    replica.run()
    assert (len(replica.outputs[1]), replica.finishes) == (1, {1: Finish.LENGTH})


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_d02_under_pressure_every_step_moves_and_all_finish(new_replica, prefix_caching):
    replica = new_replica(num_blocks=16, max_num_seqs=32, prefix_caching=prefix_caching)
    for request_id in range(32):
        replica.add(request_id, [request_id] * 20, max_tokens=60, ignore_eos=True)
    replica.run(limit=32 * 80)  # `run` fails where work is left and a step is not planned
    assert 0 < replica.scheduler.num_preemptions < 32
    assert set(replica.finishes.values()) == {Finish.LENGTH}
    replica.check_idle()


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_d02_random_arrivals_and_aborts_under_pressure(new_replica, prefix_caching):
    random = Random(2)
    replica = new_replica(num_blocks=16, max_num_seqs=8, budget=40, prefix_caching=prefix_caching)
    for request_id in range(300):
        replica.add(request_id, [request_id % 5] * random.randint(1, 60), max_tokens=random.randint(1, 60))
        for _ in range(random.choice([0, 0, 1, 40])):
            replica.step()
        if random.random() < 0.3:
            replica.start_step()
            replica.abort(random.randrange(request_id + 1), random.randrange(request_id + 1))
            if replica.in_flight:
                replica.end_step()
        replica.scheduler.check()
    assert replica.scheduler.num_preemptions > 10
    replica.run()
    replica.check_idle()


def test_d03_hits_do_not_change_the_answer(new_replica):
    """Four times in a row and interleaved, after eviction, after an abort in mid-prefill, after a preemption."""
    random = Random(3)
    prompts = [[random.randrange(97) for _ in range(random.randint(40, 120))] for _ in range(16)]
    replica = new_replica(num_blocks=20, max_num_seqs=4, budget=32)
    request_id = 0
    for prompt in prompts:
        for _ in range(4):
            request_id += 1
            replica.add(request_id, prompt, max_tokens=60)
            if random.random() < 0.2:
                for _ in range(random.randint(0, 3)):
                    replica.step()
                replica.abort(request_id)
    replica.run()
    assert replica.scheduler.prefix_hits > 1000
    assert replica.scheduler.num_preemptions > 0
    replica.check_idle()


def test_d06_five_thousand_aborts_leak_nothing(new_replica):
    random = Random(6)
    replica = new_replica(num_blocks=8, max_num_seqs=4, budget=16)
    phases = set()
    for request_id in range(5000):
        replica.add(request_id, [request_id % 90] * random.randint(1, 40), max_tokens=80)
        if request_id < 8:
            continue
        for _ in range(random.choice([0, 1, 2, 9])):
            replica.step()
        if random.random() < 0.5:
            replica.start_step()
        victim = random.choice(list(replica.scheduler._requests.values()) or [replica.requests[request_id]])
        phases.add((victim.state, bool(victim.num_generated), bool(victim.steps_in_flight)))
        replica.abort(victim.id)
        if replica.in_flight:
            replica.end_step()
    assert {state for state, _, _ in phases} >= {State.WAITING, State.RUNNING, State.PREEMPTED}
    assert {(State.RUNNING, generated, flying) for generated in (0, 1) for flying in (0, 1)} <= phases
    replica.abort(*replica.request_ids)
    replica.check_idle()
    replica.add(-1, range(128), max_tokens=1)
    replica.run()
    assert replica.finishes[-1] is Finish.LENGTH


def test_d09_a_long_prompt_stalls_neither_short_ones_nor_decodes(new_replica):
    replica = new_replica(num_blocks=300, max_num_seqs=16, budget=36)
    for request_id in range(4):
        replica.add(request_id, [request_id], max_tokens=400, ignore_eos=True)
    replica.step()
    long = replica.add(4, [7] * 3200, max_tokens=1)
    steps, request_id = 0, 5
    while long.state is not State.FINISHED:
        short = None
        if steps % 10 == 3:
            short = replica.add(request_id, [9] * 5, max_tokens=2)
            request_id += 1
        plan = replica.step()
        steps += 1
        assert {request.id for request in plan.requests} >= set(range(4)), "a decode missed a step"
        assert sum(plan.counts) == 36 or long.state is State.FINISHED
        assert short is None or short.num_generated == 1, "a short prompt waited"
    assert steps <= 3200 / 32 * 2
    assert request_id > 12


def test_d10_a_big_head_waits_for_blocks_and_is_not_bypassed(new_replica):
    """The head enters as soon as those that run have left it its blocks, and the small ones follow."""
    replica = new_replica(num_blocks=16, max_num_seqs=32)
    for request_id in range(4):
        replica.add(request_id, [request_id] * 20, max_tokens=30, ignore_eos=True)
    replica.step()
    big = replica.add(4, [9] * 200, max_tokens=20, ignore_eos=True)
    small = [replica.add(request_id, [request_id] * 5, max_tokens=5) for request_id in range(5, 25)]
    waited = 0
    while big.state is State.WAITING:
        replica.step()
        waited += 1
        assert all(request.state is State.WAITING for request in small if big.state is State.WAITING)
    assert waited <= 2 + 30
    replica.run(limit=400)
    assert big.state is State.FINISHED
    replica.check_idle()
