"""Which rows of a step the native kernel attends for together."""

import numpy as np
import pytest

from actorlm.execution.tile_plan import JOB_HEADS, MIN_SHARED, plan_tiles
from actorlm.kernels.native import Native, runnable_levels

HEADS, KV_HEADS = 6, 2
MOST = JOB_HEADS * KV_HEADS // HEADS

pytestmark = pytest.mark.skipif(not runnable_levels(), reason="no compiled kernels")


@pytest.fixture(scope="module")
def native():
    return Native(runnable_levels()[0], 1)


def plan(native, rows):
    """The groups of rows of (keys before, tokens, blocks of its table): lists of (row, position), and shared blocks."""
    width = max(len(table) for *_, table in rows)
    tables = np.array([[*table, *[0] * (width - len(table))] for *_, table in rows], np.int32)
    starts, counts = (np.array(column) for column in list(zip(*rows, strict=True))[:2])
    made = plan_tiles(starts, counts, tables, HEADS, KV_HEADS, native)
    tiles = made.tiles_4B.t().tolist()
    groups = [(tiles[first : first + size], shared) for first, size, shared in made.groups_3G.t().tolist()]
    return [([(row, position) for row, _, position, _ in members], shared) for members, shared in groups]


def table(*shared, own, blocks=20):
    return [*shared, *range(own, own + blocks - len(shared))]


def generating(*shared, own, keys=320):
    return keys - 1, 1, table(*shared, own=own)


SYSTEM = range(500, 516)


def test_rows_that_share_nothing_are_alone(native):
    made = plan(native, [generating(own=100 * row) for row in range(8)])
    assert made == [([(row, 319)], 0) for row in range(8)]


def test_rows_that_begin_alike_are_together(native):
    rows = [generating(*SYSTEM, own=100 * row) for row in range(40)]
    groups = plan(native, rows)
    assert sorted(row for members, _ in groups for row, _ in members) == list(range(40))
    assert [len(members) for members, _ in groups] == [MOST, MOST, 40 - 2 * MOST]
    assert {shared for _, shared in groups} == {len(SYSTEM)}


def test_wherever_they_stand(native):
    """Two kinds of prompt, in turn, and a prompt that is being read between them."""
    other = range(600, 608)
    rows = [generating(*(SYSTEM if row % 2 else other), own=100 * row) for row in range(8)]
    rows.insert(3, (64, 50, table(*SYSTEM, own=900)))
    groups = plan(native, rows)
    assert next(members for members, shared in groups if shared == 0)[0] == (3, 64)
    assert [[row for row, _ in members] for members, shared in groups if shared == 16] == [[1, 4, 6, 8]]
    assert [[row for row, _ in members] for members, shared in groups if shared == 8] == [[0, 2, 5, 7]]


def test_no_query_of_a_group_sees_a_shared_block_in_part(native):
    """The same blocks, but one row is at the 7th key of the last of them: copies of one prompt that came apart."""
    rows = [(320 - 1, 1, table(*SYSTEM, own=0)), (16 * 15 + 6, 1, list(SYSTEM))]
    assert plan(native, rows) == [([(0, 319), (1, 246)], 15)]


def test_a_little_is_not_worth_it(native):
    few = range(500, 500 + MIN_SHARED - 1)
    assert [shared for _, shared in plan(native, [generating(*few, own=100), generating(*few, own=200)])] == [0, 0]


def test_one_with_little_in_common_does_not_join_many_with_much(native):
    close = [generating(*SYSTEM, own=100 * row) for row in range(4)]
    distant = generating(*SYSTEM[:6], own=900)
    assert [shared for _, shared in plan(native, [*close, distant])] == [16, 0]


def test_groups_leave_work_for_all_threads():
    native = Native(runnable_levels()[0], 4)
    groups = plan(native, [generating(*SYSTEM, own=100 * row) for row in range(32)])
    assert [len(members) for members, _ in groups] == [4] * 8
