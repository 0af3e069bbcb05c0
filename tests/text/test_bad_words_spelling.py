"""Which token sequences a bad word is: as vLLM makes them."""

import pytest

from actorlm.errors import BadRequest
from actorlm.text.bad_words import sequences, spellings


def test_each_word_is_spelled_at_the_beginning_and_after_a_space():
    assert spellings(["ab", "  c d"]) == ["ab", " ab", "c d", " c d"]


@pytest.mark.parametrize("word", ["", " ", "\t\n"])
def test_a_word_without_characters_is_refused(word):
    with pytest.raises(BadRequest) as caught:
        spellings(["x", word])
    assert caught.value.param == "bad_words"


@pytest.mark.parametrize(
    ("plain", "spaced", "found"),
    [
        ([5], [6], ((5,), (6,))),
        ([5, 7], [6, 7], ((5, 7), (6, 7))),
        ([5], [32, 5], ((5,),)),  # the space is a token of its own
        ([5, 7], [6], ((5, 7),)),  # another length
        ([5], [5], ((5,),)),  # the tokenizer puts a space before every text
    ],
)
def test_the_spelling_after_a_space_counts_if_it_is_another_word(plain, spaced, found):
    assert sequences([plain, spaced]) == found


def test_words_with_equal_tokens_are_one_and_words_without_are_refused():
    assert sequences([[5], [6], [6], [5]]) == ((5,), (6,))
    with pytest.raises(BadRequest):
        sequences([[], []])
