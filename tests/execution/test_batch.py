"""Slots: layout of steps, refusal of wrong plans, and no Python loop over rows."""

import gc
import sys

import msgspec
import numpy as np
import pytest

from actorlm.errors import ProtocolError
from actorlm.execution.batch import Slots
from actorlm.messages.worker import AddRequest, RunStep
from actorlm.sampling import SamplingParams
from actorlm.wire import int32

PARAMS = SamplingParams(max_tokens=10)
EMPTY = RunStep(0, b"", (), b"", b"", b"", b"", b"", b"")


def make_slots(**changes):
    sizes = {"max_num_seqs": 4, "max_model_len": 64, "max_num_batched_tokens": 50, "num_blocks": 8, "vocab_size": 1000}
    return Slots(**{**sizes, **changes})


def change(step=EMPTY, **columns):
    return msgspec.structs.replace(step, **{k: v if k == "added" else int32(v) for k, v in columns.items()})


def add(slot, ids, prompt_length=None):
    return AddRequest(slot, int32(ids), prompt_length or len(ids), PARAMS)


FIRST = change(
    added=(add(2, range(100, 118)), add(0, [7, 8, 9], prompt_length=1)),
    block_slots=[2, 0, 2],
    block_ids=[5, 3, 1],
    slots=[0, 2],
    starts=[0, 0],
    counts=[3, 17],
    sampled=[0],
)


def test_a_step_is_laid_out():
    slots = make_slots()
    batch = slots.apply(FIRST)
    assert batch.token_ids.tolist() == [7, 8, 9, *range(100, 117)]
    assert batch.positions.tolist() == [0, 1, 2, *range(17)]
    assert batch.blocks.tolist() == [3] * 3 + [5] * 16 + [1]
    assert batch.sampled_slots.tolist() == [0]
    assert batch.sampled_tokens.tolist() == [2]
    assert batch.sampled_positions.tolist() == [3]
    assert batch.generated.tolist() == [2]


def test_sampled_tokens_need_not_be_sent_back():
    slots = make_slots()
    slots.apply(FIRST)
    slots.append(np.array([0]), np.array([42], np.int32))
    batch = slots.apply(change(slots=[2, 0], starts=[17, 3], counts=[1, 1], sampled=[0, 1]))
    assert batch.token_ids.tolist() == [117, 42]
    assert batch.sampled_slots.tolist() == [2, 0]
    assert batch.sampled_positions.tolist() == [18, 4]
    assert batch.generated.tolist() == [0, 3]


def test_a_slot_is_released_and_taken_in_one_step():
    slots = make_slots()
    slots.apply(FIRST)
    again = change(
        released=[0], added=(add(0, [1, 2]),), block_slots=[0], block_ids=[6], slots=[0], starts=[0], counts=[2]
    )
    batch = slots.apply(again)
    assert (batch.token_ids.tolist(), batch.blocks.tolist()) == ([1, 2], [6, 6])


def test_a_prefix_that_others_computed_is_skipped():
    batch = make_slots().apply(change(FIRST, starts=[2, 16], counts=[1, 2], sampled=[0, 1]))
    assert batch.positions.tolist() == [2, 16, 17]


WRONG = {
    "releases an empty slot": {"released": [1]},
    "releases no slot": {"released": [4]},
    "releases twice": {"released": [0, 0]},
    "adds to a taken slot": {"added": (add(0, [1]),)},
    "adds to no slot": {"added": (add(-1, [1]),)},
    "adds nothing": {"added": (add(1, [], 1),)},
    "adds too much": {"added": (add(1, range(65)),)},
    "adds an unknown id": {"added": (add(1, [1000]),)},
    "adds a negative id": {"added": (add(1, [-1]),)},
    "adds a longer prompt": {"added": (add(1, [1], 2),)},
    "gives a block to an empty slot": {"block_slots": [1], "block_ids": [2]},
    "gives no block": {"block_slots": [0], "block_ids": [8]},
    "gives blocks to fewer slots": {"block_slots": [0], "block_ids": [2, 4]},
    "computes an empty slot": {"slots": [1], "starts": [0], "counts": [1]},
    "computes a slot twice": {"slots": [2, 2], "starts": [17, 17], "counts": [1, 1]},
    "computes nothing": {"slots": [2], "starts": [17], "counts": [0]},
    "computes again": {"slots": [2], "starts": [16], "counts": [2]},
    "computes unknown ids": {"slots": [2], "starts": [17], "counts": [2]},
    "leaves a gap": {"slots": [2], "starts": [18], "counts": [1]},
    "columns differ": {"slots": [2], "starts": [17], "counts": []},
    "samples before the end": {
        "added": (add(1, [1, 2]),),
        "block_slots": [1],
        "block_ids": [0],
        "slots": [1],
        "starts": [0],
        "counts": [1],
        "sampled": [0],
    },
    "samples no row": {"slots": [2], "starts": [17], "counts": [1], "sampled": [1]},
    "samples unordered": {"slots": [2], "starts": [17], "counts": [1], "sampled": [0, 0]},
    "has no room": {"added": (add(1, [1, 2]),), "slots": [1], "starts": [0], "counts": [2]},
    "writes one place twice": {
        "added": (add(1, [1, 2]), add(3, [1, 2])),
        "block_slots": [1, 3],
        "block_ids": [0, 0],
        "slots": [1, 3],
        "starts": [0, 0],
        "counts": [2, 2],
    },
    "has too many tokens": {
        "added": (add(1, range(51)),),
        "block_slots": [1] * 4,
        "block_ids": [0, 2, 4, 6],
        "slots": [1],
        "starts": [0],
        "counts": [51],
    },
    "samples beyond the longest": {
        "added": (add(1, range(64)),),
        "block_slots": [1] * 4,
        "block_ids": [0, 2, 4, 6],
        "slots": [1],
        "starts": [60],
        "counts": [4],
        "sampled": [0],
    },
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_plan_is_refused(wrong):
    slots = make_slots()
    slots.apply(FIRST)
    with pytest.raises(ProtocolError):
        slots.apply(change(**wrong))


def test_a_column_of_odd_length_is_refused():
    with pytest.raises(ProtocolError, match="int32"):
        make_slots().apply(msgspec.structs.replace(EMPTY, slots=b"abc"))


def count_calls(work):
    """Python and C function calls made by `work`."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.collect()
    gc.disable()  # what it calls is no work of ours
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def calls_of_a_decode_step(rows):
    slots = make_slots(max_num_seqs=rows, num_blocks=rows, max_num_batched_tokens=1000)
    every = range(rows)
    added = tuple(add(slot, [1, 2, 3]) for slot in every)
    slots.apply(
        change(
            added=added,
            block_slots=every,
            block_ids=every,
            slots=every,
            starts=[0] * rows,
            counts=[3] * rows,
            sampled=every,
        )
    )
    slots.append(np.arange(rows), np.arange(rows, dtype=np.int32))
    step = change(slots=every, starts=[3] * rows, counts=[1] * rows, sampled=every)
    return count_calls(lambda: slots.append(slots.apply(step).sampled_slots, np.arange(rows, dtype=np.int32)))


def test_calls_do_not_depend_on_the_number_of_rows():
    calls_of_a_decode_step(4)  # whatever happens only once
    assert calls_of_a_decode_step(4) == calls_of_a_decode_step(64)
