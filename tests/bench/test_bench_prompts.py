"""Prompts have the tokens that were asked for, as a server counts them."""

import random

import pytest

from actorlm.bench.prompts import SAMPLES, WORDS, Ids, Scale, Texts, scale, text


def counting_bytes(prompt):
    """A server whose tokens are bytes, with a template of 30 around a prompt."""
    return 30 + len(prompt.encode())


def counting_words(prompt):
    """One whose tokens are words, and that puts one in front."""
    return 1 + len(prompt.split())


def learned(count):
    return scale([count(text(words, random.Random(words))) for words in SAMPLES])


def test_words_are_alike():
    assert len(set(WORDS)) == len(WORDS) > 200
    assert {len(word) for word in WORDS} == {4}


@pytest.mark.parametrize("tokens", [40, 128, 1000, 4096])
@pytest.mark.parametrize("shared", [0, 35])
@pytest.mark.parametrize(("count", "off_by"), [(counting_bytes, 5), (counting_words, 0)])
def test_text_has_the_tokens_asked_for(tokens, shared, count, off_by):
    texts = Texts(learned(count), shared, random.Random(0))
    assert abs(count(texts.make(tokens)) - tokens) <= off_by


def test_texts_share_a_prefix_and_no_more():
    one, other = (Texts(learned(counting_words), 50, random.Random(7)) for _ in range(2))
    first, second = one.make(100), one.make(100)
    assert first.split()[:49] == second.split()[:49], "one token of the 50 is the server's own"
    assert first.split()[49:60] != second.split()[49:60]
    assert first == other.make(100)


def test_ids_share_a_prefix_and_no_more():
    ids = Ids(100, 20, random.Random(0))
    first, second = ids.make(60), ids.make(60)
    assert len(first) == len(second) == 60
    assert first[:20] == second[:20]
    assert first[20:] != second[20:]
    assert set(first + second) <= set(range(100))


@pytest.mark.parametrize("counted", [[0, 0], [50, 20]])
def test_counts_that_make_no_sense(counted):
    assert scale(counted) is None


def test_there_is_always_a_word():
    assert Scale(fixed=50).words(10) == 1
