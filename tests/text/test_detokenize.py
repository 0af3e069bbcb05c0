"""One request's text: pieces, stop strings, endings, and streams that go on where another one was cut off."""

from codecs import utf_8_decode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorlm.errors import ProtocolError
from actorlm.messages.frontend import Finish
from actorlm.text.detokenize import Piece, TextStream

NOT_YET, STOP, LENGTH, ABORT, STOP_STRING = Finish


def stream(tokenizer, **options):
    return TextStream(tokenizer, **{"context_ids": (), **options})


def run(text_stream, chunks, finish=LENGTH):
    """Pushes all chunks, the last one with `finish`; returns text, ids counted, finish."""
    text, count = "", 0
    for position, chunk in enumerate(chunks):
        piece = text_stream.push(chunk, finish if position == len(chunks) - 1 else NOT_YET)
        text, count = text + piece.text, count + piece.count
        if piece.finish is not NOT_YET:
            return text, count, piece.finish
    raise AssertionError("no end")


def one_by_one(ids):
    return [(i,) for i in ids]


BYTES = st.sampled_from([*b"abc\n ", 0xE6, 0x97, 0xA5, 0xFF, 257])
STOPS = st.lists(st.text("abc\n 日\ufffd", min_size=1, max_size=4), max_size=3).map(tuple)


@st.composite
def cut(draw, ids):
    chunks, rest = [], tuple(ids)
    while rest:
        length = draw(st.integers(1, len(rest)))
        chunks.append(rest[:length])
        rest = rest[length:]
    return chunks


OPTIONS = st.fixed_dictionaries({"stop": STOPS, "include_stop": st.booleans(), "skip_special_tokens": st.booleans()})


def naive(tokenizer, ids, finish, *, stop, include_stop, skip_special_tokens):
    """The stream's answer, from decoding anew at each token."""
    rendered = ids[:-1] if finish is STOP and not include_stop else ids
    for end in range(1, len(rendered) + 1):
        text = tokenizer.decode(rendered[:end], skip_special_tokens=skip_special_tokens)
        # What a later byte may still complete is not there yet.
        complete = text if end == len(rendered) else _without_incomplete_end(rendered[:end], text)
        found = [(complete.find(s) + len(s), complete.find(s)) for s in stop if s in complete]
        if found:
            after, begin = min(found)
            is_flushed = end == len(rendered) and after > len(_without_incomplete_end(rendered, complete))
            return complete[: after if include_stop else begin], len(ids) if is_flushed else end, STOP_STRING
    return tokenizer.decode(rendered, skip_special_tokens=skip_special_tokens), len(ids), finish


def _without_incomplete_end(ids, text):
    """`text` without the U+FFFD of a character that the last bytes only begin."""
    data = bytes(i for i in ids if i < 256)
    return text[:-1] if text.endswith("\ufffd") and any(map(_begins_a_character, (data[-1:], data[-2:]))) else text


def _begins_a_character(data):
    try:
        return data != b"" and utf_8_decode(data, "strict", False) == ("", 0)
    except UnicodeDecodeError:
        return False


@settings(max_examples=250, deadline=None)
@given(st.data(), st.lists(BYTES, min_size=1, max_size=14), OPTIONS, st.sampled_from([STOP, LENGTH, ABORT]))
def test_equal_to_decoding_anew_at_each_token(byte_tokenizer, data, ids, options, finish):
    expected = naive(byte_tokenizer, ids, finish, **options)
    assert run(stream(byte_tokenizer, **options), one_by_one(ids), finish) == expected
    assert run(stream(byte_tokenizer, **options), data.draw(cut(ids)), finish) == expected


@settings(max_examples=150, deadline=None)
@given(st.data(), OPTIONS, st.sampled_from([STOP, LENGTH]))
def test_a_resumed_stream_continues_as_the_undisturbed_one(all_tokenizers, data, options, finish):
    tokenizer = data.draw(st.sampled_from(all_tokenizers))
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), min_size=2, max_size=12))
    options |= {"context_ids": tokenizer.encode("ab日")}
    chunks = data.draw(cut(ids))
    undisturbed = run(stream(tokenizer, **options), chunks, finish)
    first, delivered, seen = stream(tokenizer, **options), "", 0
    for position, chunk in enumerate(chunks[:-1]):
        piece = first.push(chunk, NOT_YET)
        if piece.finish is not NOT_YET:
            return
        delivered, seen = delivered + piece.text, seen + len(chunk)
        second = stream(tokenizer, **options, generated_ids=ids[:seen], delivered_characters=len(delivered))
        text, count, end = run(second, chunks[position + 1 :], finish)
        assert (delivered + text, seen + count, end) == undisturbed


def test_text_that_was_not_delivered_comes_with_the_next_piece(byte_tokenizer):
    resumed = stream(byte_tokenizer, generated_ids=list(b"hello"), delivered_characters=2)
    assert resumed.push(list(b" w"), NOT_YET) == Piece("llo w", 2, NOT_YET)
    assert resumed.push(list(b"o"), NOT_YET) == Piece("o", 1, NOT_YET)


@pytest.mark.parametrize("options", [{"delivered_characters": 6}, {"stop": ("ell",)}])
def test_what_no_stream_can_have_delivered_is_refused(byte_tokenizer, options):
    with pytest.raises(ProtocolError, match="cannot resume after 5 tokens"):
        stream(byte_tokenizer, generated_ids=list(b"hello"), **options)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_b03_an_end_inside_a_character_is_flushed_once(byte_tokenizer, length):
    ids = [0xE6] * length
    expected = (byte_tokenizer.decode(ids), length, LENGTH)
    assert run(stream(byte_tokenizer), one_by_one(ids)) == expected
    assert run(stream(byte_tokenizer), [ids]) == expected


@pytest.mark.parametrize("stop", [("DEFGHIJ",), ("CDEx", "DEFGHIJ"), ("DEFGHIJ", "DEFGHIJK")])
def test_b06_tokens_after_the_stop_do_not_count(byte_tokenizer, stop):
    ids = list(b"ABCDEFGHIJKLM")
    for chunks in (one_by_one(ids), [ids], [ids[:5], ids[5:]]):
        assert run(stream(byte_tokenizer, stop=stop), chunks) == ("ABC", 10, STOP_STRING)
    assert run(stream(byte_tokenizer, stop=stop, include_stop=True), [ids]) == ("ABCDEFGHIJ", 10, STOP_STRING)


def test_b06_nothing_of_a_stop_leaks(byte_tokenizer):
    text_stream = stream(byte_tokenizer, stop=("\nUser:",))
    assert [text_stream.push((byte,), NOT_YET).text for byte in b"hi\nUser"] == ["h", "i", "", "", "", "", ""]
    assert text_stream.push(b":", NOT_YET) == Piece("", 1, STOP_STRING, "\nUser:")


def test_b08_no_delay_beside_a_long_stop(byte_tokenizer):
    text_stream = stream(byte_tokenizer, stop=("x" * 100,))
    assert [text_stream.push((byte,), NOT_YET).text for byte in b"quick"] == list("quick")


@pytest.mark.parametrize(
    ("options", "text", "finish"),
    [
        ({}, "hi", STOP),
        ({"include_stop": True}, "hi", STOP),
        ({"skip_special_tokens": False}, "hi", STOP),
        ({"skip_special_tokens": False, "include_stop": True}, "hi<|im_end|>", STOP),
        ({"skip_special_tokens": False, "include_stop": True, "stop": ("<|im_end|>",)}, "hi<|im_end|>", STOP_STRING),
        ({"skip_special_tokens": False, "stop": ("<|im_end|>",)}, "hi", STOP),
        ({"stop": ("<|im_end|>",)}, "hi", STOP),
    ],
)
def test_b09_the_token_that_stops(byte_tokenizer, options, text, finish):
    ids = [*b"hi", 258]
    assert run(stream(byte_tokenizer, **options), one_by_one(ids), STOP) == (text, 3, finish)
    assert run(stream(byte_tokenizer, **options), [ids], STOP) == (text, 3, finish)


def test_b09_eos_as_text_when_it_is_ignored(byte_tokenizer):
    ids = [*b"hi", 258, *b"x"]
    options = {"skip_special_tokens": False, "stop": ("<|im_end|>",)}
    assert run(stream(byte_tokenizer, **options), one_by_one(ids)) == ("hi", 3, STOP_STRING)


def test_an_end_without_ids(byte_tokenizer):
    text_stream = stream(byte_tokenizer, stop=("ab",))
    assert text_stream.push(b"xa", NOT_YET).text == "x"
    assert text_stream.push((), ABORT) == Piece("a", 0, ABORT)


def test_pushing_after_the_end_is_our_own_mistake(byte_tokenizer):
    text_stream = stream(byte_tokenizer)
    text_stream.push((65,), LENGTH)
    with pytest.raises(AssertionError):
        text_stream.push((65,), NOT_YET)


def test_columns_of_a_message_are_ids_too(byte_tokenizer):
    from actorlm.wire import int32, read_int32

    resumed = stream(
        byte_tokenizer,
        context_ids=read_int32(int32([*b"ab"])),
        generated_ids=read_int32(int32([*b"cd"])),
        delivered_characters=2,
    )
    assert resumed.push(read_int32(int32([*b"ef"])), STOP) == Piece("e", 2, STOP)
    assert stream(byte_tokenizer, generated_ids=read_int32(b"")).push(read_int32(int32([*b"e"])), LENGTH).text == "e"
