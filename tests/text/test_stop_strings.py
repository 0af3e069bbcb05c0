"""Stop strings in pieces of text: found wherever the pieces are cut, and nothing held back without need."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorlm.text.stop_strings import StopStrings

STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), min_size=1, max_size=3).map(tuple)
PIECES = st.lists(st.text("ab\nc", max_size=4), max_size=12)


def scan_all(stops, pieces, *, include=False):
    scanner = StopStrings(tuple(stops), include=include)
    text = ""
    for piece in pieces:
        scan = scanner.scan(piece)
        text += scan.text
        if scan.found:
            return text, True
    return text + scanner.flush(), False


def naive(stops, text, *, include=False):
    """Character by character: the first moment at which the text ends with a stop string."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end if include else end - max(lengths)], True
    return text, False


@given(STOPS, PIECES, st.booleans())
def test_equal_to_a_search_character_by_character(stops, pieces, include):
    assert scan_all(stops, pieces, include=include) == naive(stops, "".join(pieces), include=include)


@given(STOPS, PIECES)
def test_the_stop_string_that_was_found_is_told(stops, pieces):
    scanner = StopStrings(stops, include=True)
    text = ""
    for piece in pieces:
        scan = scanner.scan(piece)
        text += scan.text
        if scan.found:
            assert scan.stop == max((stop for stop in stops if text.endswith(stop)), key=len)
            return
        assert scan.stop is None


@given(STOPS, PIECES)
def test_only_a_possible_beginning_is_held_back(stops, pieces):
    scanner = StopStrings(stops)
    received = delivered = ""
    for piece in pieces:
        received += piece
        scan = scanner.scan(piece)
        delivered += scan.text
        if scan.found:
            return
        held = received.removeprefix(delivered)
        assert received == delivered + held
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@pytest.mark.parametrize(
    ("stops", "text", "before"),
    [
        (["DEFGHIJ"], "ABCDEFGHIJK", "ABC"),
        (["\nUser:"], "Hello\nUser: hi", "Hello"),
        (["AB"], "ABC", ""),
        (["ab", "abc"], "xabc", "x"),
        (["abc", "ab"], "xabc", "x"),
        (["abab"], "aabab", "a"),
        (["aab"], "aaab", "a"),
        (["abcd", "bc"], "abcd", "a"),
        (["abc", "c"], "abc", ""),
    ],
)
def test_b06_each_cut_gives_the_text_before_the_stop(stops, text, before):
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            pieces = [text[:first], text[first:second], text[second:]]
            assert scan_all(stops, pieces) == (before, True)


def test_b08_text_that_cannot_begin_a_stop_is_never_delayed():
    scanner = StopStrings(("x" * 100,))
    for piece in ("The", " quick", " brown", "."):
        assert scanner.scan(piece).text == piece


def test_a_beginning_that_comes_to_nothing_is_delivered():
    scanner = StopStrings(("\n\nUser",))
    assert [scanner.scan(piece).text for piece in ("a\n", "\n", "b", "\n")] == ["a", "", "\n\nb", ""]
    assert scanner.flush() == "\n"


def test_an_empty_stop_string_is_our_own_mistake():
    with pytest.raises(AssertionError):
        StopStrings(("",))
