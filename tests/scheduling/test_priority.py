"""Priorities: who goes first, who yields, and that everybody's turn comes."""

import pytest

from actorlm.errors import BadRequest
from actorlm.messages.engine import MAX_PRIORITY
from actorlm.scheduling.policy import AGEING_STEPS


def started(replica):
    """The requests of the next step."""
    return [request.id for request in replica.step().requests]


def test_lower_ones_enter_first_and_equals_as_they_came(new_replica):
    replica = new_replica(max_num_seqs=1, policy="priority")
    for number, priority in enumerate([0, 1, 0, -1, -1]):
        replica.add(number, [1, 2], priority=priority, max_tokens=1)
    assert [started(replica) for _ in range(5)] == [[3], [4], [0], [2], [1]]


def test_nobody_who_runs_is_driven_out_of_a_slot(new_replica):
    replica = new_replica(max_num_seqs=1, policy="priority")
    replica.add(1, [1], priority=5, max_tokens=3, ignore_eos=True)
    assert started(replica) == [1]
    replica.add(2, [1], priority=-5, max_tokens=1)
    assert [started(replica) for _ in range(3)] == [[1], [1], [2]]


def test_the_least_urgent_yields_its_blocks(new_replica):
    replica = new_replica(num_blocks=4, policy="priority", prefix_caching=False)
    replica.add(1, [1] * 30, priority=5, max_tokens=20, ignore_eos=True)
    replica.step()
    replica.add(2, [2] * 14, priority=0, max_tokens=20, ignore_eos=True)
    while not replica.scheduler.num_preemptions:
        replica.step()
    assert replica.scheduler.running == 1
    assert started(replica) == [2]
    replica.run()
    replica.check_idle()


def test_who_has_waited_long_enough_goes_first(new_replica):
    replica = new_replica(max_num_seqs=1, num_blocks=100, policy="priority")
    replica.add(0, [1], max_tokens=AGEING_STEPS + 1, ignore_eos=True)
    replica.step()
    replica.add(1, [1], priority=1, max_tokens=1)
    for _ in range(AGEING_STEPS):
        replica.step()
    replica.add(2, [1], priority=0, max_tokens=1)
    replica.add(3, [1], priority=-1, max_tokens=1)
    assert [started(replica) for _ in range(3)] == [[3], [1], [2]]


def test_d11_a_stream_of_urgent_requests_does_not_starve_others(new_replica):
    replica = new_replica(max_num_seqs=1, policy="priority")
    replica.add(0, [1], priority=2, max_tokens=1)
    for number in range(1, 4 * AGEING_STEPS):
        replica.add(number, [1], priority=0, max_tokens=1)
        replica.step()
        if 0 in replica.finishes:
            break
    assert number <= 2 * AGEING_STEPS + 2


@pytest.mark.parametrize(("policy", "priority"), [("fcfs", 1), ("fcfs", -1), ("priority", MAX_PRIORITY + 1)])
def test_a_priority_that_cannot_be_kept_is_refused(new_replica, policy, priority):
    replica = new_replica(policy=policy)
    with pytest.raises(BadRequest, match="priority") as caught:
        replica.add(1, [1], priority=priority)
    assert caught.value.param == "priority"
