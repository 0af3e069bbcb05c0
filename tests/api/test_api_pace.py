"""The time to come again follows what ends and what is refused, within bounds."""

from actorlm.api.pace import LONGEST_S, WINDOW_S, Pace


def test_many_who_want_in_are_told_to_wait_longer():
    pace = Pace()
    for _ in range(20):
        pace.ended(0.0)
    assert [pace.refused(1.0) for _ in range(6)] == [1, 1, 2, 2, 3, 3]
    assert [pace.refused(1.0) for _ in range(100)][-1] == LONGEST_S


def test_what_is_long_past_does_not_count():
    pace = Pace()
    assert pace.refused(0.0) == LONGEST_S
    for _ in range(10):
        pace.ended(5.0)
    assert pace.refused(5.0) == 2
    assert pace.refused(WINDOW_S + 1) == 2
    assert pace.refused(WINDOW_S + 6) == LONGEST_S
