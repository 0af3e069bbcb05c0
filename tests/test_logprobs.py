"""Log-probabilities in columns: entries, their parts, and the message that carries those of many rows."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorlm.errors import ProtocolError
from actorlm.logprobs import Entries, Entry, Logprobs, Scores, pack, unpack
from actorlm.messages.detokenizer import TokensSampled
from actorlm.wire import int32, int64

IDS = st.integers(0, 2**31 - 1)
VALUES = st.floats(-1000, 0, width=32)
ENTRY = st.builds(
    Entry, IDS, VALUES, st.integers(1, 2**31 - 1), st.lists(st.tuples(IDS, VALUES), max_size=3)
)  # fmt: skip
LISTS = st.lists(ENTRY, max_size=6)
ROW = st.one_of(st.none(), st.tuples(st.integers(1, 99), LISTS, LISTS))


def entries(listed):
    made = Entries()
    for entry in listed:
        ids, values = zip((entry.token, entry.logprob), *entry.others, strict=True)
        made.append(entry.rank, ids, values)
    return made


def listed(scores):
    return None if scores is None else (scores.start, list(scores.prompt), list(scores.output))


@given(LISTS, st.integers(-7, 7), st.none() | st.integers(-7, 7))
def test_entries_are_cut_as_lists_are(all_of_them, begin, end):
    assert list(entries(all_of_them)) == all_of_them
    assert list(entries(all_of_them).part(begin, end)) == all_of_them[begin:end]


@given(st.lists(ROW, max_size=5))
def test_what_is_packed_comes_out_again(rows):
    made = [None if row is None else Scores(row[0], entries(row[1]), entries(row[2])) for row in rows]
    message = pack(made)
    if message is None:
        assert not any(made)
        return
    message.check(len(rows))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Logprobs) == message
    expected = [row if row is not None and (row[1] or row[2]) else None for row in rows]
    assert [listed(scores) for scores in unpack(message)] == expected


def prompt(*tokens):
    return entries([Entry(token, -1.0, 1, [(7, -2.0)] * (token % 3)) for token in tokens])


def tokens(scores):
    return scores.start, [entry.token for entry in scores.prompt], [entry.token for entry in scores.output]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (Scores(4, prompt(4, 5), prompt(10)), (1, [1, 2, 3, 4, 5], [9, 10])),
        (Scores(1, prompt(1, 2), prompt(10)), (1, [1, 2, 3], [9, 10])),
        (Scores(2, prompt(2, 3, 4)), (1, [1, 2, 3, 4], [9])),
        (Scores(1, None, prompt(10)), (1, [1, 2, 3], [9, 10])),
    ],
)
def test_a_prompt_that_comes_again_is_known(more, expected):
    scores = Scores(1, prompt(1, 2, 3), prompt(9))
    scores.extend(more)
    assert tokens(scores) == expected


def test_a_prompt_may_begin_later():
    scores = Scores(1, None, None)
    scores.extend(Scores(5, prompt(5), prompt(6)))
    assert tokens(scores) == (5, [5], [6])


@pytest.mark.parametrize(("position", "expected"), [(0, (3, [3, 4])), (3, (3, [3, 4])), (4, (4, [4])), (9, (9, []))])
def test_what_was_delivered_is_forgotten(position, expected):
    scores = Scores(3, prompt(3, 4))
    scores.forget_prompt(position)
    assert tokens(scores)[:2] == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"starts": int32([1])},
        {"prompts": int32([-1, 3])},
        {"outputs": int32([5, 0])},
        {"widths": int32([3, 0, 1])},
        {"widths": int32([1, 1, 1])},
        {"ranks": b""},
        {"ids": int32([1, 2, 3, -4])},
        {"values": b"1234"},
    ],
)
def test_columns_that_do_not_fit_are_refused(changes):
    message = pack([Scores(1, prompt(1, 3), prompt(0)), None])
    message.check(2)
    with pytest.raises(ProtocolError):
        msgspec.structs.replace(message, **changes).check(2)
    with pytest.raises(ProtocolError):
        message.check(3)


@pytest.mark.parametrize(
    ("counts", "outputs", "fits"), [([1, 0], [1, 0], True), ([1, 0], [0, 0], True), ([2, 1], [1, 1], False)]
)
def test_a_row_of_tokens_has_an_entry_for_each_of_them_or_for_none(counts, outputs, fits):
    rows = [Scores(1, prompt(4), prompt(*range(count))) for count in outputs]
    message = TokensSampled(
        replica=0, requests=int64([1, 2]), attempts=int32([0, 0]), counts=int32(counts),
        tokens=int32(range(sum(counts))), finishes=bytes(2), cached=int32([0, 0]), logprobs=pack(rows),
    )  # fmt: skip
    if fits:
        message.check()
    else:
        with pytest.raises(ProtocolError, match="other than its tokens"):
            message.check()
