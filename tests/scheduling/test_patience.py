"""Who has waited too long, by a clock that the test moves."""

from scheduling_replica import generate

from actorlm.scheduling.patience import Patience
from actorlm.scheduling.request import Request


def test_who_waits_too_long_is_told_once(new_replica):
    replica, patience = new_replica(max_num_seqs=1), Patience(10.0)
    assert patience.ends_at is None
    for number in range(4):
        patience.begin(replica.add(number, [1], max_tokens=1), float(number))
    replica.step()
    replica.abort(2)
    assert patience.ends_at == 10.0
    assert patience.overdue(9.9) == []
    assert [request.id for request in patience.overdue(12.5)] == [1]
    assert patience.ends_at == 13.0
    assert [request.id for request in patience.overdue(99.0)] == [3]
    assert (patience.ends_at, patience.overdue(100.0)) == (None, [])


def test_a_request_that_ran_once_has_had_its_turn(new_replica):
    """Also one that is preempted, and one that resumes at this replica."""
    replica, patience = new_replica(num_blocks=3, prefix_caching=False), Patience(10.0)
    for number in range(2):
        patience.begin(replica.add(number, [number] * 15, max_tokens=9, ignore_eos=True), 0.0)
    while not replica.scheduler.num_preemptions:
        replica.step()
    patience.begin(Request.from_generate(generate(9, [1], attempt=1)), 0.0)
    assert patience.overdue(1000.0) == []


def test_without_a_time_nobody_is_late():
    patience = Patience(0.0)
    patience.begin(Request.from_generate(generate(9, [1])), 0.0)
    assert patience.ends_at is None
