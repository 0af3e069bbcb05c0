"""Bad words of one request, against a search of the whole output."""

from hypothesis import given
from hypothesis import strategies as st

from actorlm.execution.bad_words import BadWords

TOKENS = st.integers(0, 3)
WORDS = st.lists(st.lists(TOKENS, min_size=1, max_size=4), max_size=5)


@given(WORDS, st.lists(TOKENS, max_size=12), st.lists(TOKENS, max_size=12))
def test_a_token_is_banned_exactly_where_it_would_complete_a_word(words, before, after):
    bad, output = BadWords(words, before), list(before)
    for token in [*after, None]:
        expected = {word[-1] for word in words if (output + word[-1:])[-len(word) :] == word}
        assert set(bad.banned()) == expected
        if token is not None:
            bad.append(token)
            output.append(token)


def test_banned_tokens_are_not_changed_by_asking():
    bad = BadWords([[1], [2, 3]], [2])
    assert sorted(bad.banned()) == sorted(bad.banned()) == [1, 3]
    bad.append(0)
    assert bad.banned() == [1]
