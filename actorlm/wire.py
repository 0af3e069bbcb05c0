"""What messages are made of: their base class, and columns of numbers.

Messages are positional on the wire (`array_like`), tagged with their class name, immutable, and free of
reference cycles. `runtime/fingerprint.py` makes positional decoding safe: two sides whose structs differ in any
way refuse each other at the handshake.

A column holds numbers of many requests in one raw little-endian buffer: 256 decodes as structs cost
14 + 64 µs to encode and decode, as columns 1 + 1 µs. The element type is part of the annotation, so that the
fingerprint sees it.
"""

import sys
from array import array
from collections.abc import Iterable
from typing import Annotated, dataclass_transform

import msgspec

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("actorlm's wire format is little-endian and this machine is not")

Int32 = Annotated[bytes, msgspec.Meta(extra={"column": "int32"})]
Int64 = Annotated[bytes, msgspec.Meta(extra={"column": "int64"})]
Float32 = Annotated[bytes, msgspec.Meta(extra={"column": "float32"})]
UInt8 = Annotated[bytes, msgspec.Meta(extra={"column": "uint8"})]

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""A number or a count that fits an int32 column."""
MAX_SESSION = 128
Session = Annotated[str, msgspec.Meta(max_length=MAX_SESSION)]
"""What a client calls several requests that belong together; empty for none."""
RequestId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Message(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True, tag=True):
    """A struct that may travel between actors. Subclasses are tagged with their class name."""


def int32(values: Iterable[int]) -> bytes:
    """Packs integers into an int32 column. Raises OverflowError for a value outside of int32."""
    return array("i", values).tobytes()


def int64(values: Iterable[int]) -> bytes:
    """Packs integers into an int64 column. Raises OverflowError for a value outside of int64."""
    return array("q", values).tobytes()


def read_int32(column: bytes) -> "memoryview[int]":
    """A view of an int32 column's values. Raises TypeError if the length is no multiple of 4."""
    return memoryview(column).cast("i")


def read_int64(column: bytes) -> "memoryview[int]":
    """A view of an int64 column's values. Raises TypeError if the length is no multiple of 8."""
    return memoryview(column).cast("q")
