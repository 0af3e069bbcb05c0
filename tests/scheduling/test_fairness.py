"""Callers share a replica as their weights are, whatever each of them sends; one alone is served as it asks."""

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given
from scheduling_replica import generate

from actorlm.scheduling.fairness import FEW, FairQueue
from actorlm.scheduling.load import HORIZON, near, work
from actorlm.scheduling.policy import AGEING_STEPS
from actorlm.scheduling.request import Request


def started(replica):
    """The requests of the next step."""
    return [request.id for request in replica.step().requests]


def request(number, tenant="", *, weight=1.0, prompt=10, max_tokens=8, attempt=0):
    message = generate(number, [1] * prompt, max_tokens=max_tokens, tenant=tenant, weight=weight, attempt=attempt)
    made = Request.from_generate(message)
    made.limit((), 10_000)
    return made


def cost(one):
    known = len(one.token_ids)
    return work(known, near(one.max_length - known))


def serve(queue):
    """The next one enters, and ends as it was expected to."""
    one = queue.first
    queue.enter(one)
    one.token_ids.extend([1] * near(one.max_length - len(one.token_ids)))
    queue.ended(one)
    queue.check()
    return one


# One caller.


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400), st.booleans()), max_size=30))
def test_one_caller_is_served_in_the_order_of_arrival(arrivals):
    queue, came, went = FairQueue(), [], []
    for number, (prompt, max_tokens, serves) in enumerate(arrivals):
        queue.add(request(number, prompt=prompt, max_tokens=max_tokens), 0)
        came.append(number)
        if serves:
            went.append(serve(queue).id)
    while len(queue):
        went.append(serve(queue).id)
    assert went == came


# Several.


def test_a_thousand_of_one_do_not_delay_one_of_another(new_replica):
    """It is the next to enter, or the one after, however late it comes."""
    replica = new_replica(max_num_seqs=1)
    for number in range(1000):
        replica.add(number, [1], max_tokens=1, tenant="heavy")
    for number in range(1000, 1010):
        started(replica)
        replica.add(number, [1], max_tokens=1, tenant="light")
        assert number in started(replica) + started(replica)


def test_two_callers_take_turns_and_each_keeps_its_order(new_replica):
    replica = new_replica(max_num_seqs=1)
    for number in range(6):
        replica.add(number, [1], max_tokens=1, tenant="first" if number < 3 else "second")
    assert [started(replica)[0] for _ in range(6)] == [0, 3, 1, 4, 2, 5]


callers = st.lists(
    st.tuples(st.sampled_from([0.5, 1.0, 3.0]), st.integers(1, 300), st.integers(1, 300)), min_size=2, max_size=5
)


@given(callers, st.integers(1, 200))
def test_what_each_gets_is_as_the_weights_are(asked, served):
    """Of all that always have somebody waiting, none is behind another by more than one request of each."""
    queue = FairQueue()
    for number, (weight, prompt, max_tokens) in enumerate(asked):
        for _ in range(served):
            queue.add(request(0, str(number), weight=weight, prompt=prompt, max_tokens=max_tokens), 0)
    got = [0.0] * len(asked)
    for _ in range(served):
        one = queue.first
        got[int(one.tenant)] += cost(one) / one.weight
        queue.enter(one)
    largest = [cost(request(0, prompt=prompt, max_tokens=most)) / weight for weight, prompt, most in asked]
    for one, other in ((a, b) for a in range(len(asked)) for b in range(len(asked)) if a != b):
        assert got[one] - got[other] <= largest[one] + largest[other]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 99), st.sampled_from("+-x")), max_size=60))
def test_whoever_waits_is_served_while_others_come_and_go(events):
    """Work conserving: as long as anybody waits there is a next one, and all who came leave once."""
    queue, waiting = FairQueue(), {}
    for number, (tenant, prompt, event) in enumerate(events):
        if event == "+" or not waiting:
            waiting[number] = request(number, tenant, prompt=prompt)
            queue.add(waiting[number], 0)
        elif event == "-":
            del waiting[serve(queue).id]
        else:
            _, gone = waiting.popitem()
            queue.leave(gone)
        queue.check()
        assert {one.id for one in queue} == waiting.keys()
    while waiting:
        del waiting[serve(queue).id]
    assert (len(queue), queue.tokens) == (0, 0)


def test_requests_that_left_before_they_ran_cost_nothing():
    queue = FairQueue()
    gone = [request(number, "a") for number in range(1000)]
    for one in gone:
        queue.add(one, 0)
    queue.add(request(1001, "b"), 0)
    queue.add(request(1002, "b"), 0)
    for one in gone:
        queue.leave(one)
    queue.add(request(1003, "a"), 0)
    assert [serve(queue).id for _ in range(3)] == [1001, 1003, 1002]


def test_who_generates_more_than_was_expected_pays_for_it():
    """Twenty times as much, so that the other is served some twenty times in between."""
    queue = FairQueue()
    for number in range(3):
        queue.add(request(number, "long", max_tokens=20 * HORIZON), 0)
    for number in range(10, 60):
        queue.add(request(number, "short", max_tokens=HORIZON), 0)
    order = []
    while len(queue):
        one = queue.first
        queue.enter(one)
        one.token_ids.extend([1] * (one.max_length - len(one.token_ids)))
        queue.ended(one)
        order.append(one.id)
    assert order.index(1) - order.index(0) >= 18
    assert order.index(2) - order.index(1) >= 18


def test_who_was_alone_for_long_owes_nothing_and_nobody_saves_up_turns():
    queue = FairQueue()
    for number in range(500):
        queue.add(request(number, "alone"), 0)
        serve(queue)
    for number in range(4):
        queue.add(request(1000 + number, "alone"), 0)
        queue.add(request(2000 + number, "new"), 0)
    assert Counter(serve(queue).tenant for _ in range(4)) == {"alone": 2, "new": 2}


def test_idle_callers_are_forgotten():
    """Also while somebody always waits, and what each owes is never forgiven."""
    queue = FairQueue()
    queue.add(request(0, "always"), 0)
    for number in range(20 * FEW):
        queue.add(request(number, f"caller {number}", prompt=number % 7 + 1), 0)
        serve(queue)
    assert len(queue._accounts) <= FEW + 2


def test_priorities_count_among_the_requests_of_one_caller(new_replica):
    """A caller that calls everything urgent gets its share and no more."""
    replica = new_replica(max_num_seqs=1, policy="priority")
    for number, priority in enumerate([-900, -1000, -1000]):
        replica.add(number, [1], max_tokens=1, tenant="pushing", priority=priority)
    for number, priority in enumerate([5, 4], start=10):
        replica.add(number, [1], max_tokens=1, tenant="modest", priority=priority)
    assert [started(replica)[0] for _ in range(5)] == [1, 11, 2, 10, 0]


def test_ageing_goes_on_within_a_caller(new_replica):
    replica = new_replica(max_num_seqs=1, num_blocks=100, policy="priority")
    replica.add(0, [1], max_tokens=AGEING_STEPS + 1, ignore_eos=True, tenant="a")
    replica.step()
    replica.add(1, [1], priority=1, max_tokens=1, tenant="a")
    for _ in range(AGEING_STEPS):
        replica.step()
    replica.add(2, [1], priority=0, max_tokens=1, tenant="a")
    assert [started(replica), started(replica)] == [[1], [2]]


def test_who_resumes_stands_before_all_that_never_ran(new_replica):
    replica = new_replica(max_num_seqs=1)
    for number in range(3):
        replica.add(number, [1], max_tokens=1, tenant="a")
    replica.add(7, [1, 2], generated=[3], attempt=1, max_tokens=2, ignore_eos=True, tenant="b")
    replica.add(8, [1, 2], generated=[3], attempt=2, max_tokens=2, ignore_eos=True, tenant="b")
    del replica.expected[7], replica.expected[8]
    assert [started(replica)[0] for _ in range(5)] == [7, 8, 0, 1, 2]
