"""How many rows graphs are made for. (What they compute: tests/kernels/gpu/test_whole_model.py.)"""

import pytest

from actorlm.execution.decode_graphs import sizes_up_to


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (16, [1, 2, 4, 8, 16]), (20, [1, 2, 4, 8, 16, 20])],
)
def test_sizes(rows, sizes):
    assert sizes_up_to(rows) == sizes


def test_the_largest_is_what_a_step_may_have():
    for rows in range(1, 400):
        sizes = sizes_up_to(rows)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == rows
