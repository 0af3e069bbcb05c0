"""Suspects, one at a time."""

from actorlm.scheduling.trials import Trials


def test_one_at_a_time_in_order():
    trials = Trials()
    assert trials.may_begin(1)
    assert trials.may_begin(1), "its next attempt"
    for request in (2, 3):
        assert not trials.may_begin(request)
        trials.wait(request, f"generate {request}")
    assert trials.next() is None
    trials.over(1)
    assert trials.next() == "generate 2"
    assert trials.next() is None, "2 is on trial"
    assert not trials.may_begin(4)
    trials.over(2)
    assert trials.next() == "generate 3"
    trials.over(3)
    assert trials.next() is None
    assert len(trials) == 0


def test_who_waits_may_end_and_a_next_attempt_takes_its_place():
    trials = Trials()
    trials.may_begin(1)
    trials.wait(2, "first attempt")
    trials.wait(3, "other")
    trials.wait(2, "next attempt")
    trials.over(77)
    trials.over(1)
    assert trials.next() == "next attempt"
    trials.over(3)
    trials.over(2)
    assert trials.next() is None
