"""Frame 0: 24 bytes, checked before anything is decoded.

The layout never changes; its first byte says which version the rest of the message follows.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from actorlm.runtime.errors import BadHeader

VERSION = 1
LAYOUT = struct.Struct("<BBHIQQ")
SIZE = LAYOUT.size


class Kind(IntEnum):
    """What a message is for the transport."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    HANDSHAKE_REQUIRED = 4
    MESSAGE = 5
    BROADCAST = 6


_KINDS = {int(kind): kind for kind in Kind}


class Header(NamedTuple):
    """A header's fields.

    `session` is the session of a WELCOME, HANDSHAKE_REQUIRED or MESSAGE, the epoch of a BROADCAST, else 0.
    `sequence` counts the messages of a session or epoch from 1; in a handshake it is the number of the attempt.
    `sent_ns` is the sender's Unix time in nanoseconds. `flags` are reserved and 0.
    """

    kind: Kind
    session: int
    sequence: int
    sent_ns: int
    version: int = VERSION
    flags: int = 0

    def encode(self) -> bytes:
        """The 24 bytes."""
        return LAYOUT.pack(self.version, self.kind, self.flags, self.session, self.sequence, self.sent_ns)


def parse(frame: bytes) -> Header:
    """The header in `frame`. Its version is the caller's to judge. Raises BadHeader."""
    if len(frame) != SIZE:
        raise BadHeader(f"frame 0 has {len(frame)} bytes; a header has {SIZE}")
    version, number, flags, session, sequence, sent_ns = LAYOUT.unpack(frame)
    kind = _KINDS.get(number)
    if kind is None:
        raise BadHeader(f"a header of kind {number}; the kinds are {min(_KINDS)} to {max(_KINDS)}")
    if flags:
        raise BadHeader(f"a header with flags {flags:#06x}; flags are reserved and 0")
    return Header(kind, session, sequence, sent_ns, version, flags)


def check_version(header: Header) -> None:
    """Raises BadHeader if the sender follows another version."""
    if header.version != VERSION:
        raise BadHeader(
            f"header version {header.version}; this side speaks {VERSION}: run one version of actorlm everywhere"
        )
