"""What a balancer remembers: bounded, the least recently used forgotten first, beginnings before ends kept."""

from collections import OrderedDict

import hypothesis.strategies as st
from hypothesis import given, settings

from actorlm.config import BLOCK_SIZE
from actorlm.scheduling.affinity import MAX_RECENT, Demand, PrefixMemory, Sessions, block_names
from actorlm.scheduling.load import BURST_S
from actorlm.wire import int32


def names(*tokens, salt=""):
    return block_names(int32(tokens), salt)


def test_names_are_those_of_whole_prefixes():
    assert names(*range(15)) == []
    assert len(names(*range(47))) == 2
    assert names(*range(47)) == names(*range(40))
    changed = names(1, *range(1, 48))
    assert not set(changed) & set(names(*range(48))), "a block's name depends on all before it"
    assert names(*range(32), salt="a")[0] != names(*range(32))[0]
    assert names(*range(32), *range(32))[2] != names(*range(32))[0], "and on its place"


def test_what_was_sent_is_held_as_far_as_it_agrees():
    memory = PrefixMemory(10)
    memory.remember(names(*range(64)))
    assert memory.held(names(*range(64))) == 4
    assert memory.held(names(*range(40), 0, *range(41, 64))) == 2
    assert memory.held(names(9, *range(1, 64))) == 0
    assert memory.held([]) == 0


def test_ends_are_forgotten_before_beginnings():
    memory = PrefixMemory(4)
    long, other = names(*range(64)), names(*range(100, 132))
    memory.remember(long)
    memory.remember(other)
    assert (memory.held(long), memory.held(other)) == (2, 2)
    memory.remember(long[:1])
    memory.remember(names(*range(200, 216)))
    assert (memory.held(long), memory.held(other), len(memory)) == (1, 2, 4)


def test_a_prompt_that_is_larger_than_the_memory():
    memory = PrefixMemory(3)
    memory.remember(names(*range(10 * BLOCK_SIZE)))
    assert memory.held(names(*range(10 * BLOCK_SIZE))) == 3
    nothing = PrefixMemory(0)
    nothing.remember(names(*range(64)))
    assert len(nothing) == 0


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 12), st.lists(st.lists(st.integers(0, 1), max_size=6), max_size=20))
def test_no_memory_outgrows_its_bound(capacity, prompts):
    memory, expected = PrefixMemory(capacity), OrderedDict()
    for branch in prompts:
        blocks = names(*(bit for bit in branch for _ in range(BLOCK_SIZE)))
        memory.remember(blocks)
        for name in reversed(blocks[:capacity]):
            expected.pop(name, None)
            expected[name] = None
        while len(expected) > capacity:
            expected.popitem(last=False)
        assert len(memory) == len(expected) <= capacity
        held = memory.held(blocks)
        assert all(name in expected for name in blocks[:held])
        assert held == len(blocks) or blocks[held] not in expected


def test_what_two_prompts_begin_with_is_in_demand_for_a_moment():
    demand, prompt = Demand(), names(*range(160))
    assert demand.shared(prompt, 0.0) == 0
    demand.note(prompt, 0.0)
    assert demand.shared(prompt, 0.1) == 0, "one alone is no demand"
    demand.note(names(*range(100)), 0.3)
    assert demand.shared(prompt, 0.4) == 6
    assert demand.shared(prompt[:3], 0.4) == 3
    assert demand.shared(names(7, *range(160)), 0.4) == 0
    assert demand.shared(prompt, BURST_S) == 0
    for _ in range(MAX_RECENT):
        demand.note((), 0.4)
    assert demand.shared(prompt, 0.4) == 0, "only the last ones are looked at"


def test_sessions_are_bounded_and_the_oldest_goes_first():
    sessions = Sessions(2)
    sessions.remember("a", 0)
    sessions.remember("b", 1)
    sessions.remember("a", 1)
    sessions.remember("c", 0)
    assert [sessions.place(name) for name in "abc"] == [1, None, 0]
    assert len(sessions) == 2
    sessions.forget(1)
    assert [sessions.place(name) for name in "abc"] == [None, None, 0]
