"""Bytes to messages: a message of the inbox, or one of two errors, whatever the bytes are."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_world import Blob, Ping, Pong, Row, Rows, ServerInbox

from actorlm.runtime.codec import Codec, encode
from actorlm.runtime.errors import BadBody, MessageTooLarge
from actorlm.wire import Int64, Message, UInt8, int32


class Tree(Message):
    """Has the field types through which nesting could reach the decoder's depth."""

    parts: tuple[Ping | Blob, ...]
    names: dict[str, tuple[int, ...]]
    whatever: int | str | None


CODEC: Codec[Any] = Codec(ServerInbox | Tree, max_bytes=200_000)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
TAGS = st.sampled_from(["Ping", "Row", "Rows", "Blob", "Tree", "Pong", ""])


def decodes_or_refuses(body: bytes) -> None:
    try:
        message = CODEC.decode(body)
    except (BadBody, MessageTooLarge):
        return
    assert isinstance(message, ServerInbox | Tree)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_message_or_an_error(body: bytes) -> None:
    decodes_or_refuses(body)


@given(JUNK)
def test_any_msgpack_is_a_message_or_an_error(value: Any) -> None:
    decodes_or_refuses(msgspec.msgpack.encode(value))


@given(TAGS, st.lists(JUNK, max_size=4))
def test_any_fields_are_a_message_or_an_error(tag: str, fields: list[Any]) -> None:
    decodes_or_refuses(msgspec.msgpack.encode([tag, *fields]))


@given(st.data(), st.sampled_from([Ping(1), Row(int32([1])), Rows((Row(b""),)), Blob(b"abc")]))
def test_a_damaged_message_is_a_message_or_an_error(data: st.DataObject, message: Message) -> None:
    body = bytearray(encode(message))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    decodes_or_refuses(bytes(body[: data.draw(st.integers(0, len(body)))]))


@pytest.mark.parametrize("opening", [b"\x91", b"\x81", b"\x81\xa1x", b"\xdc\x00\x01", b"\x94\xa4Tree"])
@pytest.mark.parametrize(
    "before", [b"", b"\x94\xa4Tree", b"\x94\xa4Tree\x91", b"\x94\xa4Tree\x90\x81\xa1x", b"\x95\xa4Tree\x90\x80\xc0"]
)
def test_e04_deep_nesting(opening: bytes, before: bytes) -> None:
    with pytest.raises(BadBody):
        CODEC.decode(before + opening * (150_000 // len(opening)))


class Loose(Message):
    """A field of any type, which no message of ours has, is where nesting reaches the decoder's depth."""

    value: Any


def test_e04_nesting_beyond_the_depth_of_the_decoder() -> None:
    with pytest.raises(BadBody):
        Codec(Loose).decode(b"\x92\xa5Loose" + b"\x91" * 100_000 + b"\xc0")


@pytest.mark.parametrize(
    "body",
    [b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x92\xa4Blob\xc6\xff\xff\xff\xff"],
)
def test_e04_huge_declared_lengths(body: bytes) -> None:
    with pytest.raises(BadBody):
        CODEC.decode(body)


def test_a_body_above_the_limit_is_not_decoded() -> None:
    with pytest.raises(MessageTooLarge):
        CODEC.decode(encode(Blob(bytes(200_001))))
    with pytest.raises(MessageTooLarge):
        CODEC.encode(Blob(bytes(200_001)))


@pytest.mark.parametrize("message", [Ping(2**64), Ping(-(2**63) - 1), Tree((), {}, "\ud800"), Ping(object())])  # type: ignore[arg-type]
def test_what_msgpack_cannot_carry_is_an_error_of_the_sender(message: Message) -> None:
    with pytest.raises(BadBody, match=type(message).__name__):
        encode(message)


@pytest.mark.parametrize(
    "message", [Ping(1), Row(int32([1, 2])), Rows((Row(b""), Row(int32([3])))), Tree((Ping(1),), {}, None)]
)
def test_messages_survive(message: Message) -> None:
    assert CODEC.decode(CODEC.encode(message)) == message
    assert CODEC.read(encode(message)) == message
    assert CODEC.read(message) is message


def test_a_message_of_another_inbox_is_refused_by_either_transport() -> None:
    for body in (Pong(1), encode(Pong(1)), None):
        with pytest.raises(BadBody):
            CODEC.read(body)
    with pytest.raises(BadBody, match="Pong"):
        CODEC.encode(Pong(1))


def test_an_inbox_may_be_a_single_struct() -> None:
    codec: Codec[Ping] = Codec(Ping)
    assert codec.decode(codec.encode(Ping(3))) == Ping(3)


class Columns(Message):
    small: UInt8
    large: Int64
    rows: Rows


@pytest.mark.parametrize(
    ("message", "where"),
    [
        (Row(b"123"), "Row.ids"),
        (Rows((Row(b"1234"), Row(b"12345"))), "Rows.rows"),
        (Columns(b"1", b"1234", Rows(())), "Columns.large"),
        (Columns(b"1", b"12345678", Rows((Row(b"1"),))), "Columns.rows: Rows.rows: Row.ids"),
    ],
)
def test_columns_that_are_not_whole_are_refused_by_name(message: Message, where: str) -> None:
    codec: Codec[Any] = Codec(Row | Rows | Columns)
    for body in (message, encode(message)):
        with pytest.raises(BadBody, match=where):
            codec.read(body)
