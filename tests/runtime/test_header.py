"""Frame 0: its layout, and that anything else is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorlm.runtime.errors import BadHeader
from actorlm.runtime.header import SIZE, Header, Kind, check_version, parse

HEADERS = st.builds(
    Header,
    kind=st.sampled_from(Kind),
    session=st.integers(0, 2**32 - 1),
    sequence=st.integers(0, 2**64 - 1),
    sent_ns=st.integers(0, 2**64 - 1),
    version=st.integers(0, 255),
    flags=st.just(0),
)


def test_the_layout_is_fixed() -> None:
    assert SIZE == 24
    frame = Header(Kind.MESSAGE, session=7, sequence=8, sent_ns=9).encode()
    assert frame == struct.pack("<BBHIQQ", 1, 5, 0, 7, 8, 9)


@given(HEADERS)
def test_what_is_encoded_is_parsed(header: Header) -> None:
    assert parse(header.encode()) == header


@given(st.binary(max_size=64) | st.binary(min_size=SIZE, max_size=SIZE))
def test_any_bytes_are_a_header_or_an_error(frame: bytes) -> None:
    try:
        header = parse(frame)
    except BadHeader:
        return
    assert header.encode() == frame


@pytest.mark.parametrize(
    "frame", [b"", b"\x01", bytes(23), bytes(25), bytes(24), b"\x01\x07" + bytes(22), b"\x01\x05\x01" + bytes(21)]
)
def test_wrong_sizes_kinds_and_flags_are_refused(frame: bytes) -> None:
    with pytest.raises(BadHeader):
        parse(frame)


def test_another_version_parses_and_is_refused_by_its_number() -> None:
    header = parse(b"\x09" + Header(Kind.HELLO, 0, 0, 0).encode()[1:])
    assert header.kind is Kind.HELLO
    with pytest.raises(BadHeader, match="version 9"):
        check_version(header)
