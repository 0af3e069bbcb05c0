"""Pieces of text join to what decoding everything at once gives, whatever the ids and however they are cut."""

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from actorlm.text.incremental import ByteLevelStream, WindowStream, incremental
from actorlm.text.tokenizer import Tokenizer

SPACED = ["▁", "▁▁", "▁hello", "▁world", ".", "<0x0A>", "<0x09>", "</s>", "<0xE6>", "<0x97>", "<0xA5>", "日", "a"]


def stream(tokenizer, context=(), *, skip=True):
    return incremental(tokenizer, context_ids=context, skip_special_tokens=skip)


def joined(decoder, chunks):
    return "".join([decoder.push(chunk) for chunk in chunks]) + decoder.flush()


def ids_of(tokenizer, **sizes):
    return st.lists(st.integers(0, tokenizer.vocab_size), **sizes)


@st.composite
def chunked(draw, ids):
    chunks, rest = [], draw(ids)
    while rest:
        cut = draw(st.integers(1, len(rest)))
        chunks.append(rest[:cut])
        rest = rest[cut:]
    return chunks


@settings(max_examples=250, deadline=None)
@given(st.data(), st.booleans())
def test_any_ids_in_any_chunks(all_tokenizers, data, skip):
    tokenizer = data.draw(st.sampled_from(all_tokenizers))
    chunks = data.draw(chunked(ids_of(tokenizer, max_size=25)))
    everything = tokenizer.decode([i for chunk in chunks for i in chunk], skip_special_tokens=skip)
    assert joined(stream(tokenizer, skip=skip), chunks) == everything


@pytest.fixture(scope="module")
def spacing_tokenizer():
    """Its decoder puts a space between any two tokens."""
    vocabulary = {"[UNK]": 0, "a": 1, "b": 2, "[X]": 3, "[Y]": 4}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.add_special_tokens(["[X]", "[Y]"])
    return Tokenizer(backend)


@pytest.mark.parametrize(
    ("ids", "spaced", "unspaced"),
    [
        ([1, 3, 4, 2], "a [X] [Y] b", "a [X][Y] b"),
        ([3, 3, 3, 1, 4, 3], "[X] [X] [X] a [Y] [X]", "[X][X][X] a [Y][X]"),
        ([1, 2, 1], "a b a", "a b a"),
    ],
)
def test_special_tokens_are_joined_unless_spaces_are_wanted(spacing_tokenizer, ids, spaced, unspaced):
    def text(**options):
        decoder = incremental(spacing_tokenizer, context_ids=(), skip_special_tokens=False, **options)
        return joined(decoder, [[i] for i in ids])

    assert text() == text(spaces_between_special_tokens=True) == spaced
    assert text(spaces_between_special_tokens=False) == unspaced


UTF8_BYTES = st.sampled_from([0xE6, 0x97, 0xA5, 0xF0, 0x9F, 0x91, 0xA9, 0xED, 0xA0, 0x80, 0xC3, 0xE0, 0xF4, 0x41, 256])


@settings(max_examples=250, deadline=None)
@given(chunked(st.lists(UTF8_BYTES, max_size=16)))
def test_bytes_that_are_almost_characters(byte_tokenizer, chunks):
    everything = byte_tokenizer.decode([i for chunk in chunks for i in chunk])
    assert joined(stream(byte_tokenizer), chunks) == everything


@settings(max_examples=250, deadline=None)
@given(st.data(), st.booleans())
def test_b05_spaces_and_byte_runs_of_sentencepiece(spm_tokenizer, data, skip):
    ids = st.sampled_from([spm_tokenizer.backend.token_to_id(token) for token in SPACED])
    chunks = data.draw(chunked(st.lists(ids, max_size=12)))
    everything = spm_tokenizer.decode([i for chunk in chunks for i in chunk], skip_special_tokens=skip)
    assert joined(stream(spm_tokenizer, skip=skip), chunks) == everything


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_stream_joins_its_context(all_tokenizers, data):
    tokenizer = data.draw(st.sampled_from(all_tokenizers))
    context = tokenizer.encode(data.draw(st.text("ahelo 日.", min_size=1, max_size=10)))
    text = tokenizer.decode(context)
    chunks = data.draw(chunked(st.lists(st.sampled_from(tokenizer.encode("hello 日本 world.")), max_size=10)))
    everything = tokenizer.decode([*context, *(i for chunk in chunks for i in chunk)])
    assert joined(stream(tokenizer, context), chunks) == everything[len(text) :]


def test_a_character_that_the_context_leaves_incomplete_belongs_to_the_stream(byte_tokenizer):
    decoder = stream(byte_tokenizer, [65, 0xE6, 0x97])
    assert decoder.push([0xA5, 66]) == "日B"


def test_a_character_comes_as_soon_as_it_is_complete_and_never_before(byte_tokenizer):
    decoder = stream(byte_tokenizer)
    assert [decoder.push([byte]) for byte in "é日👩".encode()] == ["", "é", "", "", "日", "", "", "", "👩"]


def test_a_wrong_byte_is_shown_at_once(byte_tokenizer):
    decoder = stream(byte_tokenizer)
    assert [decoder.push([byte]) for byte in (0x80, 0xE6, 0x41)] == ["\ufffd", "", "\ufffdA"]


def test_a_byte_run_waits_for_its_end(spm_tokenizer):
    tokens = ["<0xE6>", "<0x97>", "<0xA5>", "a", "<0xE6>", "<0x97>", "a"]
    decoder = stream(spm_tokenizer)
    pieces = [decoder.push([spm_tokenizer.backend.token_to_id(token)]) for token in tokens]
    assert pieces == ["", "", "", "日a", "", "", "\ufffd\ufffda"]


def test_the_window_stays_small(spm_tokenizer):
    decoder = stream(spm_tokenizer)
    hello, end, unknown = spm_tokenizer.backend.token_to_id("▁hello"), 2, 99_999
    for _ in range(200):
        decoder.push([hello, end, unknown])
    assert len(decoder._given) + len(decoder._new) <= 2


def test_each_tokenizer_gets_its_decoder(bpe_tokenizer, spm_tokenizer):
    assert isinstance(stream(bpe_tokenizer), ByteLevelStream)
    assert isinstance(stream(spm_tokenizer), WindowStream)


@pytest.mark.parametrize("skip", [True, False])
def test_words_without_any_decoder(skip):
    from tokenizers import AddedToken, models
    from tokenizers import Tokenizer as Backend

    from actorlm.text.tokenizer import Tokenizer

    backend = Backend(models.WordLevel({"a": 0, "b\ufffd": 1, "?": 2}, unk_token="?"))
    backend.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizer = Tokenizer(backend)
    ids = [0, 1, 3, 1, 0, 3, 0, 1]
    chunks = [[i] for i in ids]
    assert joined(stream(tokenizer, skip=skip), chunks) == tokenizer.decode(ids, skip_special_tokens=skip)
