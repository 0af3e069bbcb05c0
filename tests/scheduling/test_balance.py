from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from actorlm.errors import Unavailable
from actorlm.scheduling.balance import Balance


def fleet(*capacities: int) -> Balance:
    balance = Balance()
    for replica, capacity in enumerate(capacities):
        balance.join(replica, capacity)
    return balance


def test_a_burst_of_equal_requests_is_dealt_equally():
    balance = fleet(1000, 1000, 1000, 1000)
    chosen = [balance.choose(request, 100) for request in range(64)]
    assert Counter(chosen) == {0: 16, 1: 16, 2: 16, 3: 16}
    assert chosen[:4] == [0, 1, 2, 3]
    balance.check()


def test_a_long_request_weighs_more():
    balance = fleet(1000, 1000)
    assert [balance.choose(1, 500), balance.choose(2, 100), balance.choose(3, 100), balance.choose(4, 100)] == [
        0,
        1,
        1,
        1,
    ]


def test_a_large_replica_takes_more():
    balance = fleet(1000, 3000)
    assert Counter(balance.choose(request, 10) for request in range(40)) == {0: 10, 1: 30}


def test_equal_work_goes_to_fewest_requests():
    balance = fleet(1000, 1000)
    assert [balance.choose(1, 50), balance.choose(2, 60), balance.choose(3, 50)] == [0, 1, 0]
    balance.ended([2])
    assert [balance.choose(4, 100), balance.choose(5, 10)] == [1, 1]


def test_idle_replicas_take_turns():
    balance = fleet(1000, 1000, 1000)
    chosen = []
    for request in range(6):
        chosen.append(balance.choose(request, 100))
        balance.ended([request])
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_what_has_ended_no_longer_counts():
    balance = fleet(1000, 1000)
    balance.choose(1, 500)
    balance.choose(2, 100)
    balance.ended([1, 77])
    assert balance.owner(1) is None
    assert list(balance.requests) == [2]
    assert balance.choose(3, 100) == 0
    balance.check()


def test_without_replicas_nothing_is_chosen():
    balance = Balance()
    with pytest.raises(Unavailable):
        balance.choose(1, 100)
    assert not balance.requests


def test_a_replica_that_leaves_loses_its_requests():
    balance = fleet(1000, 1000)
    for request in range(4):
        balance.choose(request, 100)
    assert balance.leave(0) == [0, 2]
    assert (balance.owner(0), balance.owner(1)) == (None, 1)
    assert balance.choose(0, 100) == 1
    assert balance.leave(0) == []
    balance.ended([2])
    balance.check()


def test_a_replica_that_comes_back_is_empty():
    balance = fleet(1000, 1000)
    for request in range(4):
        balance.choose(request, 100)
    balance.leave(0)
    balance.join(0, 1000)
    assert [balance.choose(4, 150), balance.choose(5, 100)] == [0, 0]
    balance.check()


def test_a_replica_that_announces_itself_again_keeps_its_requests():
    balance = fleet(1000)
    balance.choose(1, 100)
    balance.join(0, 500)
    assert balance.owner(1) == 0
    balance.join(1, 1000)
    assert [balance.choose(2, 150), balance.choose(3, 100)] == [1, 1]
    balance.check()


def test_the_next_attempt_follows_the_last_one():
    """The end of the aborted attempt must not be taken for the end of the next."""
    balance = fleet(1000, 1000)
    assert balance.choose(1, 100) == 0
    assert balance.choose(1, 100) == 0
    balance.ended([1])
    assert balance.owner(1) == 0
    balance.check()
    balance.ended([1])
    assert balance.owner(1) is None
    balance.check()


def test_a_new_balance_counts_what_replicas_report():
    balance = fleet(1000, 1000)
    balance.reported(0, running=2, waiting=1, kv_used_tokens=100)
    assert [balance.choose(request, 50) for request in range(4)] == [1, 1, 1, 0]
    balance.reported(0, running=1, waiting=0, kv_used_tokens=100)
    assert balance.choose(9, 50) == 0
    balance.reported(7, running=1, waiting=0, kv_used_tokens=100)
    balance.check()


moves = st.tuples(
    st.sampled_from(["join", "leave", "choose", "choose", "choose", "ended"]), st.integers(0, 9), st.integers(1, 99)
)


@settings(max_examples=100, deadline=None)
@given(st.lists(moves, max_size=60))
def test_accounts_hold_after_any_moves(history):
    balance, joined = Balance(), set()
    for move, number, tokens in history:
        if move == "join":
            balance.join(number % 4, 1000)
            joined.add(number % 4)
        elif move == "leave":
            assert all(balance.owner(request) is None for request in balance.leave(number % 4))
            joined.discard(number % 4)
        elif move == "ended":
            balance.ended([number])
        elif joined:
            assert balance.choose(number, tokens) in joined
            assert balance.owner(number) in joined
        balance.check()
