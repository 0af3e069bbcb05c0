"""Percentiles are those of numpy, where a second opinion is near."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorlm.bench.distribution import Distribution, distribution, percentile

NUMBERS = st.lists(st.floats(0, 1e6), min_size=1, max_size=200)


@given(NUMBERS, st.sampled_from([0, 1, 50, 90, 99, 99.9, 100]))
def test_percentiles_are_those_of_numpy(values, share):
    assert percentile(sorted(values), share) == pytest.approx(np.percentile(values, share), rel=1e-9, abs=1e-9)


def test_a_known_one():
    values = [float(value) for value in range(100, 0, -1)]
    assert distribution(values) == Distribution(
        count=100, mean=50.5, median=50.5, p90=pytest.approx(90.1), p99=pytest.approx(99.01), max=100
    )
    assert values[0] == 100, "the measurements are left as they are"


def test_one_and_none():
    assert distribution([3.0]) == Distribution(count=1, mean=3, median=3, p90=3, p99=3, max=3)
    assert distribution([]) is None
