import hypothesis.strategies as st
from hypothesis import given

from actorlm.scheduling.policy import Shares, may_enter


def divide(tokens: int, *wanted: int) -> list[int]:
    shares = Shares(tokens)
    for want in wanted:
        shares.ask(want)
    return shares.settle()


def test_one_prefill_gets_all_that_it_wants():
    assert divide(100, 1000) == [100]
    assert divide(100, 30) == [30]


def test_a_short_one_fits_beside_a_long_one():
    assert divide(100, 1000, 25) == [75, 25]
    assert divide(100, 1000, 1000, 12) == [63, 25, 12]


def test_what_nobody_wants_goes_to_the_oldest():
    assert divide(100, 60, 1000) == [60, 40]


def test_the_last_ones_may_get_nothing():
    assert divide(3, 9, 9, 9) == [2, 1, 0]
    assert divide(1, 9, 9) == [1, 0]
    assert divide(0, 9) == [0]


@given(st.integers(0, 5000), st.lists(st.integers(1, 3000), max_size=30))
def test_no_token_is_left_over_or_given_twice(tokens, wanted):
    granted = divide(tokens, *wanted)
    assert all(0 <= got <= want for got, want in zip(granted, wanted, strict=True))
    assert sum(granted) == min(tokens, sum(wanted))
    if wanted:
        assert granted[0] >= min(wanted[0], tokens / 2)


def test_each_that_runs_keeps_a_free_block():
    assert may_enter(blocks=4, free=4, running=0)
    assert may_enter(blocks=4, free=6, running=2)
    assert not may_enter(blocks=4, free=5, running=2)
