import pytest

from actorlm.errors import BadRequest, ContextLengthExceeded, Overloaded, ProtocolError
from actorlm.messages.frontend import Finish
from actorlm.scheduling.policy import Shares
from actorlm.scheduling.request import State


def ids(plan) -> list[int]:
    return [request.id for request in plan.requests]


def test_an_idle_scheduler_plans_nothing(new_replica):
    scheduler = new_replica().scheduler
    assert scheduler.plan() is None
    assert not scheduler.has_work
    assert scheduler.abort([1, 2]) == []


def test_a_request_is_prefilled_then_decoded(new_replica):
    replica = new_replica(budget=16)
    replica.add(1, range(20), max_tokens=3)
    rows = []
    while (plan := replica.step()) is not None:
        rows.append((plan.starts, plan.counts, plan.sampled))
    assert rows == [([0], [16], []), ([16], [4], [0]), ([20], [1], [0]), ([21], [1], [0])]
    assert replica.finishes == {1: Finish.LENGTH}
    replica.check_idle()


def test_steps_are_numbered_from_zero_without_gaps(new_replica):
    replica = new_replica()
    numbers = []
    for request_id in range(2):
        replica.add(request_id, [1], max_tokens=2)
        numbers += [plan.step for plan in iter(replica.step, None)]
    assert numbers == [0, 1, 2, 3]


def test_a_new_request_joins_those_that_run(new_replica):
    replica = new_replica()
    replica.add(1, [1, 2, 3])
    replica.step()
    replica.add(2, [4, 5])
    plan = replica.step()
    assert (ids(plan), plan.starts, plan.counts) == ([1, 2], [3, 0], [1, 2])


def test_released_slots_travel_with_the_next_step(new_replica):
    replica = new_replica(max_num_seqs=1)
    replica.add(1, [1], max_tokens=1)
    replica.add(2, [2], max_tokens=1)
    first, second = replica.step(), replica.step()
    assert (first.released, first.slots) == ([], [0])
    assert (second.released, second.slots) == ([0], [0])


def test_numbers_for_metrics(new_replica):
    replica = new_replica(num_blocks=8, max_num_seqs=1)
    replica.add(1, range(20))
    replica.add(2, range(20))
    scheduler = replica.scheduler
    assert (scheduler.running, scheduler.waiting, scheduler.kv_used_tokens) == (0, 2, 0)
    replica.start_step()
    assert (scheduler.running, scheduler.waiting, scheduler.kv_used_tokens) == (1, 1, 32)
    assert (scheduler.steps_in_flight, scheduler.kv_capacity_tokens) == (1, 128)
    replica.run()
    assert (scheduler.prefix_queries, scheduler.prefix_hits) == (40, 16)
    assert replica.requests[2].num_cached == 16
    assert not scheduler.has_work


def test_without_prefix_caching_nothing_is_shared(new_replica):
    replica = new_replica(prefix_caching=False, max_num_seqs=1)
    replica.add(1, range(40), max_tokens=1)
    replica.add(2, range(40), max_tokens=1)
    replica.run()
    assert replica.worker.tokens_computed == 80
    assert replica.scheduler.prefix_queries == replica.requests[2].num_cached == 0


def test_equal_prefixes_are_computed_once(new_replica):
    replica = new_replica()
    replica.add(1, range(40), max_tokens=1)
    replica.step()
    replica.add(2, range(40), max_tokens=1)
    replica.run()
    assert replica.worker.tokens_computed == 40 + 8
    assert replica.requests[2].num_cached == 32


def test_equal_prefixes_are_computed_once_in_a_burst(new_replica):
    """Those that come together share what the first of them computes in the same step."""
    replica = new_replica(num_blocks=32, budget=100)
    for number in range(4):
        replica.add(number, [*range(40), number], max_tokens=3)
    replica.step()
    assert replica.worker.tokens_computed == 41 + 3 * 9
    assert [replica.requests[number].num_cached for number in range(4)] == [0, 32, 32, 32]
    replica.run()
    replica.check_idle()


def test_only_what_the_step_is_sure_to_compute_is_shared_in_it(new_replica):
    """The first gets half of 40 tokens at least, which fill one block; that it gets more is settled later."""
    replica = new_replica(num_blocks=32, budget=40)
    replica.add(1, range(100), max_tokens=1)
    replica.add(2, range(100), max_tokens=1)
    replica.step()
    assert replica.requests[2].num_cached == 16
    replica.run()
    replica.check_idle()


def test_the_one_who_computes_a_shared_prefix_may_leave_at_once(new_replica):
    replica = new_replica(num_blocks=32)
    for number in range(3):
        replica.add(number, range(40), max_tokens=3)
    replica.start_step()
    replica.abort(0)
    replica.end_step()
    replica.run()
    replica.check_idle()


def test_a_scored_prompt_is_computed_whole_and_in_small_chunks(new_replica, monkeypatch):
    monkeypatch.setattr(Shares.__init__, "__defaults__", (20,))
    replica = new_replica(budget=64, num_blocks=32)
    prompt = list(range(60))
    replica.add(1, prompt)
    replica.run()
    replica.add(2, prompt, prompt_logprobs=1)
    replica.add(3, prompt, prompt_logprobs=1, max_tokens=2)
    replica.add(4, prompt)
    before = replica.worker.tokens_computed
    plan = replica.step()
    counts = {request.id: count for request, count in zip(plan.requests, plan.counts, strict=True)}
    assert counts == {2: 20, 4: 60 % 16}, "20 tokens of scored prompts in a step; the others find the prefix"
    replica.run()
    assert replica.worker.tokens_computed - before == 60 + 7 + 60 + 1 + 12 + 7
    assert [replica.requests[number].num_cached for number in (2, 3, 4)] == [0, 0, 48]
    assert replica.scheduler.prefix_queries == 120, "a request that may not find anything does not ask"
    replica.check_idle()


def test_a_scored_request_that_has_a_token_may_find_prefixes(new_replica):
    replica = new_replica(num_blocks=32)
    prompt = list(range(60))
    replica.add(1, prompt)
    replica.run()
    tokens = replica.outputs[1][:2]
    replica.add(2, prompt, generated=tokens, attempt=1, prompt_logprobs=1)
    replica.step()
    assert replica.requests[2].num_cached == 48


def test_a_resumed_request_goes_on_where_it_was(new_replica):
    replica = new_replica()
    prompt = list(range(30))
    replica.add(1, prompt, max_tokens=20)
    for _ in range(8):
        replica.step()
    replica.abort(1)
    output = list(replica.outputs[1])
    request = replica.add(1, prompt, max_tokens=20, generated=output, attempt=1)
    replica.run()
    assert len(replica.outputs[1]) == 20
    assert request.num_cached <= request.prompt_length
    replica.check_idle()


@pytest.mark.parametrize("phase", ["waiting", "prefill", "decode", "preempted"])
@pytest.mark.parametrize("in_flight", [False, True])
def test_an_abort_ends_every_phase(new_replica, phase, in_flight):
    replica = new_replica(num_blocks=4, max_num_seqs=1 if phase == "waiting" else 4, budget=16)
    replica.add(1, range(16), max_tokens=40)
    request = replica.add(2, range(20), max_tokens=40)
    expected = {
        "waiting": (State.WAITING, 0),
        "prefill": (State.RUNNING, 0),
        "decode": (State.RUNNING, 1),
        "preempted": (State.PREEMPTED, 1),
    }[phase]
    while (request.state, min(request.num_generated, 1)) != expected or (
        phase == "prefill" and not request.num_computed
    ):
        assert replica.step() is not None
    if in_flight:
        replica.start_step()
    assert replica.abort(2) == [2]
    assert replica.abort(2) == []
    replica.scheduler.check()
    while replica.in_flight:
        replica.end_step()
    assert request.state is State.FINISHED
    replica.run()
    assert replica.finishes == {1: Finish.LENGTH, 2: Finish.ABORT}
    replica.check_idle()


def test_all_that_is_left_can_be_aborted(new_replica):
    replica = new_replica(max_num_seqs=2)
    for request_id in range(4):
        replica.add(request_id, [request_id])
    replica.step()
    assert replica.scheduler.abort(replica.request_ids) == [0, 1, 2, 3]
    assert not replica.request_ids


def test_a_step_in_flight_keeps_slot_and_blocks(new_replica):
    replica = new_replica(max_num_seqs=1)
    replica.add(1, range(20), max_tokens=5)
    replica.start_step()
    replica.abort(1)
    assert replica.requests[1].state is State.LEAVING
    assert replica.scheduler.kv_used_tokens == 32
    assert not replica.scheduler.has_work
    replica.add(1, range(20), max_tokens=5, attempt=1)
    assert replica.start_step() is None
    replica.end_step()
    assert replica.outputs[1] == []
    assert replica.scheduler.kv_used_tokens == 0
    replica.run()
    replica.check_idle()


def test_an_abort_under_two_steps_waits_for_both(new_replica):
    replica = new_replica()
    request = replica.add(1, range(20), max_tokens=5)
    replica.start_step()
    replica.start_step()
    replica.abort(1)
    replica.end_step()
    replica.scheduler.check()
    assert (request.state, replica.scheduler.kv_used_tokens) == (State.LEAVING, 32)
    replica.end_step()
    assert (request.state, replica.scheduler.kv_used_tokens) == (State.FINISHED, 0)
    replica.check_idle()


def test_a_request_that_stops_under_a_second_step_keeps_its_blocks_for_it(new_replica):
    replica = new_replica(eos=tuple(range(97)))
    request = replica.add(1, range(20), max_tokens=5)
    replica.start_step()
    replica.start_step()
    assert request.num_pending == 2
    replica.end_step()
    assert replica.finishes == {1: Finish.STOP}
    assert (request.state, replica.scheduler.kv_used_tokens) == (State.LEAVING, 32)
    replica.end_step()
    assert (request.state, replica.scheduler.kv_used_tokens) == (State.FINISHED, 0)


def test_no_step_goes_beyond_the_last_token(new_replica):
    replica = new_replica()
    replica.add(1, range(20), max_tokens=2)
    assert replica.start_step() is not None
    assert replica.start_step() is not None
    assert replica.start_step() is None


def test_the_youngest_yields_and_is_first_in_line(new_replica):
    replica = new_replica(num_blocks=6, max_num_seqs=2)
    for request_id in (1, 2, 3):
        replica.add(request_id, [request_id] * 16, max_tokens=60)
    while not replica.scheduler.num_preemptions:
        replica.step()
    states = [replica.requests[request_id].state for request_id in (1, 2, 3)]
    assert states == [State.RUNNING, State.PREEMPTED, State.WAITING]
    replica.run()
    assert list(replica.finishes) == [1, 2, 3]
    replica.check_idle()


def test_what_was_computed_before_a_preemption_is_no_cache_hit(new_replica):
    replica = new_replica(num_blocks=6, max_num_seqs=2)
    replica.add(1, [1] * 16, max_tokens=60)
    replica.add(2, [2] * 16, max_tokens=60)
    replica.run()
    assert replica.scheduler.num_preemptions > 0
    assert (replica.scheduler.prefix_queries, replica.scheduler.prefix_hits) == (32, 0)
    assert replica.requests[2].num_cached == 0


def test_no_more_run_than_a_step_has_tokens(new_replica):
    replica = new_replica(num_blocks=64, max_num_seqs=8, budget=3)
    for request_id in range(8):
        replica.add(request_id, [request_id], max_tokens=30)
    for _ in range(12):
        replica.step()
    assert replica.scheduler.running == 3
    replica.run()
    replica.check_idle()


def test_the_queue_is_bounded(new_replica):
    replica = new_replica(max_num_seqs=2, max_waiting=3)
    for request_id in range(5):
        replica.add(request_id, [1])
    with pytest.raises(Overloaded, match="5 requests wait and max_waiting is 3"):
        replica.add(5, [1])
    replica.step()
    with pytest.raises(Overloaded, match="3 requests wait and max_waiting is 3"):
        replica.add(5, [1])
    replica.abort(4)
    replica.add(5, [1])
    replica.run()
    replica.check_idle()


def test_the_queue_is_bounded_by_tokens(new_replica):
    """Beyond what fits the cache at once, if a slot is free; and what would never fit the queue may wait alone."""
    replica = new_replica(num_blocks=16, max_num_seqs=1, max_waiting_tokens=50)
    replica.add(0, [1] * 20)
    replica.add(1, [1] * 200)
    replica.add(2, [1] * 86)
    with pytest.raises(Overloaded, match="306 tokens wait, and with the 1 of this .* max_waiting_tokens, 50"):
        replica.add(3, [1])
    replica.abort(1)
    replica.step()
    assert replica.scheduler.waiting_tokens == 86
    with pytest.raises(Overloaded, match="86 tokens wait"):
        replica.add(3, [1])
    replica.abort(2)
    replica.add(3, [1] * 100)
    with pytest.raises(Overloaded, match="100 tokens wait"):
        replica.add(4, [1])
    replica.run()
    replica.check_idle()


def test_who_fills_the_queue_does_not_close_it_to_others(new_replica):
    """Each caller may have its even part of the bound waiting, and one request in any case."""
    replica = new_replica(max_num_seqs=1, max_waiting=4, max_waiting_tokens=100)
    for request_id in range(5):
        replica.add(request_id, [1] * 20, tenant="heavy")
    replica.step()
    for request_id in range(5, 7):
        replica.add(request_id, [1] * 25, tenant="light")
    replica.add(7, [1] * 90, tenant="third")
    for tenant in ("heavy", "light", "third"):
        with pytest.raises(Overloaded, match="requests wait"):
            replica.add(8, [1], tenant=tenant)
    replica.run()
    replica.check_idle()


@pytest.mark.parametrize("bounds", [{"max_waiting": 1}, {"max_waiting_tokens": 1}], ids=str)
def test_a_request_that_resumes_is_never_too_much(new_replica, bounds):
    """It was accepted before."""
    replica = new_replica(max_num_seqs=1, **bounds)
    replica.add(0, [1], ignore_eos=True)
    replica.step()
    replica.add(1, [1])
    with pytest.raises(Overloaded):
        replica.add(2, [1])
    replica.add(2, [1], attempt=1)
    replica.run()
    replica.check_idle()


@pytest.mark.parametrize(
    ("prompt", "options", "error", "message"),
    [
        (range(64), {}, ContextLengthExceeded, "64 tokens and a sequence at most 64"),
        (range(60), {"generated": range(4), "attempt": 1}, ContextLengthExceeded, "64 tokens, 4 of them generated"),
        (range(49), {}, ContextLengthExceeded, "49 tokens and the KV cache holds 48"),
        ([], {}, BadRequest, "no tokens"),
        ([1], {"max_tokens": 0}, BadRequest, "max_tokens is 0"),
        ([1], {"max_tokens": 2, "generated": [5, 6], "attempt": 1}, BadRequest, "max_tokens is 2 and 2 are generated"),
    ],
)
def test_what_cannot_be_served_is_refused(new_replica, prompt, options, error, message):
    replica = new_replica(num_blocks=3, max_model_len=64)
    with pytest.raises(error, match=message):
        replica.add(1, prompt, **options)
    assert not replica.scheduler.has_work


def test_an_id_is_taken_once(new_replica):
    replica = new_replica()
    replica.add(1, [1])
    with pytest.raises(BadRequest, match="request 1 has not ended"):
        replica.add(1, [2])


def test_a_step_must_return_its_tokens(new_replica):
    replica = new_replica()
    replica.add(1, [1])
    plan = replica.start_step()
    with pytest.raises(ProtocolError, match="step 0 returned 2 tokens; it sampled 1"):
        replica.scheduler.apply(plan, [1, 2])
    replica.run()


def test_steps_are_applied_in_order(new_replica):
    replica = new_replica()
    replica.add(1, [1])
    replica.start_step()
    second = replica.start_step()
    with pytest.raises(AssertionError, match="step 1 is applied out of order"):
        replica.scheduler.apply(second, [1])
