"""A line keeps its order whatever comes and goes."""

import hypothesis.strategies as st
import pytest
from hypothesis import given
from scheduling_replica import generate

from actorlm.scheduling.line import Line
from actorlm.scheduling.request import Request


def request(*rank):
    made = Request.from_generate(generate(0, [1]))
    made.rank = rank
    return made


@given(st.lists(st.integers(0, 3), max_size=20), st.randoms())
def test_first_to_last(ranks, random):
    line, requests = Line(), [request(rank, number) for number, rank in enumerate(ranks)]
    for one in random.sample(requests, len(requests)):
        line.add(one)
    gone = requests[::3]
    for one in gone:
        line.remove(one)
    left = sorted((one for one in requests if one not in gone), key=lambda one: one.rank)
    assert list(line) == left
    assert len(line) == len(left)
    if left:
        assert (line.first, line.last) == (left[0], left[-1])


def test_only_who_stands_in_it_can_leave():
    line = Line()
    line.add(request(0, 0))
    with pytest.raises(AssertionError):
        line.remove(request(0, 0))
