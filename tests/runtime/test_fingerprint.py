"""The fingerprint changes with everything that decoding depends on, and with nothing else."""

from enum import IntEnum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from actorlm.runtime.fingerprint import fingerprint
from actorlm.wire import Int32, Int64, Message, UInt8


class Colour(IntEnum):
    RED = 1
    BLUE = 2


class OtherColour(IntEnum):
    RED = 2
    BLUE = 1


OtherColour.__name__ = "Colour"


def struct(name: str = "Said", /, **fields: Any) -> Any:
    """A message struct; a value that is a tuple is a type and a default."""
    listed = [(field, *kind) if isinstance(kind, tuple) else (field, kind) for field, kind in fields.items()]
    return msgspec.defstruct(name, listed, bases=(Message,), tag=name)


def digest(inbox: Any, version: int = 1) -> str:
    return fingerprint({"inbox": inbox}, version).digest


BASE = {"width": int, "height": int, "name": (str, "")}


def test_equal_structs_have_equal_fingerprints() -> None:
    assert digest(struct(**BASE)) == digest(struct(**BASE))


@pytest.mark.parametrize(
    "fields",
    [
        {"height": int, "width": int, "name": (str, "")},
        {"width": int, "depth": int, "name": (str, "")},
        {"width": int, "height": float, "name": (str, "")},
        {"width": int, "height": int, "name": (str, "x")},
        {"width": int, "height": int, "name": str},
        {"width": int, "height": int, "name": (str | None, "")},
        {"width": int, "height": Annotated[int, msgspec.Meta(ge=0)], "name": (str, "")},
        {"width": int, "height": int},
        {"width": int, "height": int, "name": (str, ""), "more": (int, 0)},
    ],
)
def test_every_difference_of_fields_changes_it(fields: dict[str, Any]) -> None:
    ours, theirs = fingerprint({"inbox": struct(**BASE)}, 1), fingerprint({"inbox": struct(**fields)}, 1)
    assert ours.digest != theirs.digest
    assert ours.first_difference(theirs.digests) == theirs.first_difference(ours.digests) == "Said"


@pytest.mark.parametrize(
    "kinds",
    [
        (Int32, Int64),
        (Int32, UInt8),
        (Int32, bytes),
        (Int32 | None, Int64 | None),
        (Colour, OtherColour),
        (Literal["a", "b"], Literal["a", "c"]),
        (tuple[int, ...], tuple[float, ...]),
        (tuple[int, ...], list[int]),
        (tuple[int, str], tuple[str, int]),
        (dict[str, int], dict[str, str]),
        (bool, int),
    ],
)
def test_every_difference_of_types_changes_it(kinds: tuple[Any, Any]) -> None:
    one, other = (digest(struct(value=kind)) for kind in kinds)
    assert one != other


def test_a_nested_struct_is_named_itself() -> None:
    def outer(inner: Any) -> Any:
        return struct("Outer", parts=tuple[inner, ...], one=inner | None, table=dict[str, inner])

    ours = fingerprint({"inbox": outer(struct("Inner", a=int, b=int))}, 1)
    theirs = fingerprint({"inbox": outer(struct("Inner", b=int, a=int))}, 1)
    assert list(ours.structs) == ["Outer", "Inner"]
    assert ours.digest != theirs.digest
    assert ours.first_difference(theirs.digests) == "Inner"


def test_what_an_inbox_accepts_is_part_of_it() -> None:
    one, two = struct("One"), struct("Two")
    ours, theirs = (fingerprint({"a": x, "b": one | two}, 1) for x in (one, two))
    assert ours.digest != theirs.digest
    assert set(ours.structs) == set(theirs.structs)
    assert ours.first_difference(theirs.digests) == "inbox a"


def test_a_struct_that_only_the_other_side_has_is_named() -> None:
    one, two = struct("One"), struct("Two")
    ours, theirs = fingerprint({"a": one}, 1), fingerprint({"a": one | two}, 1)
    assert theirs.first_difference(ours.digests) == "Two"
    assert ours.first_difference(ours.digests) is None


def test_the_version_is_part_of_it_and_documentation_is_not() -> None:
    said, documented = struct(a=int), struct(a=int)
    documented.__doc__ = "Something else."
    assert digest(said) == digest(documented)
    assert digest(said, version=1) != digest(said, version=2)


def test_fields_are_described() -> None:
    description = fingerprint({"inbox": struct(ids=Int32, colour=(Colour, Colour.RED), maybe=(int | None, None))}, 1)
    ids, colour, maybe = description.structs["Said"].fields
    assert (ids.name, ids.type, ids.default, ids.column) == ("ids", "bytes:int32", None, "int32")
    assert (colour.type, colour.default) == ("Colour{RED=1, BLUE=2}", "1")
    assert (maybe.type, maybe.default) == ("int | None", "null")


def test_two_structs_with_one_tag_are_an_error() -> None:
    with pytest.raises(TypeError, match="Said"):
        fingerprint({"a": struct(a=int), "b": struct(a=int)}, 1)


def test_a_type_that_cannot_be_described_is_an_error() -> None:
    with pytest.raises(TypeError, match="Any"):
        fingerprint({"a": struct(a=Any)}, 1)
