import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from actorlm.scheduling.blocks import BlockPool, blocks_for


def test_blocks_for_tokens():
    assert [blocks_for(tokens) for tokens in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]


def test_blocks_are_taken_once_and_come_back():
    pool = BlockPool(4)
    first, second = pool.take(3), pool.take(1)
    assert sorted(first + second) == [0, 1, 2, 3]
    assert (pool.num_free, pool.num_used) == (0, 4)
    pool.check([first, second])
    pool.release(first)
    assert pool.num_free == 3
    pool.check([second])


def test_more_than_is_free_cannot_be_taken():
    with pytest.raises(AssertionError, match="3 blocks wanted, 2 free"):
        BlockPool(2).take(3)


def test_a_block_is_not_released_twice():
    pool = BlockPool(1)
    blocks = pool.take(1)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="once too often"):
        pool.release(blocks)


def test_a_shared_block_stays_until_its_last_user_leaves():
    pool = BlockPool(2)
    blocks = pool.take(1)
    pool.share(blocks)
    pool.release(blocks)
    assert pool.num_used == 1
    pool.check([blocks])
    pool.release(blocks)
    assert pool.num_used == 0


def test_contents_are_found_while_in_use_and_after():
    pool = BlockPool(2)
    [block] = pool.take(1)
    pool.name(block, b"a")
    assert (pool.find(b"a"), pool.find(b"b")) == (block, None)
    pool.release([block])
    assert pool.find(b"a") == block
    assert pool.count_idle([block]) == 1
    pool.share([block])
    assert (pool.count_idle([block]), pool.num_used) == (0, 1)
    pool.check([[block]])


def test_the_second_block_with_the_same_contents_gets_no_name():
    pool = BlockPool(2)
    first, second = pool.take(2)
    pool.name(first, b"a")
    pool.name(second, b"a")
    assert pool.find(b"a") == first
    pool.release([first, second])
    assert pool.count_idle([first, second]) == 1
    pool.check([])


def test_blank_blocks_go_first_then_the_least_recently_used():
    pool = BlockPool(4)
    tables = [pool.take(1) for _ in range(3)]
    for table, name in zip(tables, (b"a", b"b", b"c"), strict=True):
        pool.name(table[0], name)
        pool.release(table)
    pool.share(tables[0])
    pool.release(tables[0])
    pool.take(2)
    assert [pool.find(name) is not None for name in (b"a", b"b", b"c")] == [True, False, True]
    pool.take(1)
    assert [pool.find(name) is not None for name in (b"a", b"b", b"c")] == [True, False, False]


def test_the_end_of_a_sequence_is_forgotten_before_its_beginning():
    pool = BlockPool(3)
    table = pool.take(3)
    for block, name in zip(table, (b"a", b"ab", b"abc"), strict=True):
        pool.name(block, name)
    pool.release(table)
    pool.take(1)
    assert pool.find(b"abc") is None
    assert pool.find(b"ab") is not None


@pytest.mark.parametrize("tables", [[], [[0], [0]], [[0, 1]]])
def test_check_finds_wrong_accounts(tables):
    pool = BlockPool(2)
    assert pool.take(1) == [0]
    with pytest.raises(AssertionError):
        pool.check(tables)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["take", "share", "release", "name"]), st.integers(0, 7)), max_size=60))
def test_accounts_hold_after_any_moves(moves):
    pool, tables = BlockPool(6), []
    for move, number in moves:
        if move == "take":
            tables.append(pool.take(min(number % 3 + 1, pool.num_free)))
        elif move == "share":
            block = pool.find(bytes([number]))
            if block is not None:
                pool.share([block])
                tables.append([block])
        elif move == "release" and tables:
            pool.release(tables.pop(number % len(tables)))
        elif move == "name" and tables and tables[-1] and pool._names[tables[-1][0]] is None:
            pool.name(tables[-1][0], bytes([number]))
        pool.check(tables)
    for table in tables:
        pool.release(table)
    assert pool.num_free == 6
