"""Ragged against lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from actorlm.execution.ragged import Ragged, ranges

NUMBERS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40)


def test_ranges():
    owner, numbers = ranges(np.array([5, 0, 9]), np.array([2, 0, 3]))
    assert owner.tolist() == [0, 0, 2, 2, 2]
    assert numbers.tolist() == [5, 6, 9, 10, 11]


@given(st.lists(NUMBERS, min_size=4, max_size=4), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99))))
def test_replace_append_and_read(lists, appended):
    ragged = Ragged(4, np.int32)
    for slot, numbers in enumerate(lists):
        ragged.replace(slot, numbers)
    ragged.append(np.array([s for s, _ in appended], np.int64), np.array([n for _, n in appended], np.int32))
    expected = [[*numbers, *(n for s, n in appended if s == slot)] for slot, numbers in enumerate(lists)]
    for order in ([0, 1, 2, 3], [2, 0], []):
        owner, numbers = ragged.read_all(np.array(order, np.int64))
        assert numbers.tolist() == [n for slot in order for n in expected[slot]]
        assert owner.tolist() == [i for i, slot in enumerate(order) for _ in expected[slot]]


def test_replace_shortens():
    ragged = Ragged(1, np.int32)
    ragged.replace(0, range(100))
    ragged.replace(0, [7])
    assert ragged.read_all(np.array([0]))[1].tolist() == [7]
