"""What two sides must agree on, computed from the message structs themselves.

Positional structs of two versions may decode into each other without an error. So the walk below describes every
struct of every inbox, nested ones included: its tag, and in order each field's name, type, default and column type.
The digest of that description is the fingerprint that the handshake compares; `docs/protocol.*` are made of the
same description.
"""

import hashlib
import inspect as python
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect

from actorlm.runtime.columns import column_of


class FieldDescription(msgspec.Struct, frozen=True):
    """One field. `default` is JSON, or None where a value is required; `column` is the element type of a column."""

    name: str
    type: str
    default: str | None
    column: str


class StructDescription(msgspec.Struct, frozen=True):
    """One struct. `doc` is its docstring and no part of the digest."""

    tag: str
    layout: str
    fields: tuple[FieldDescription, ...]
    digest: str
    doc: str


class Fingerprint(msgspec.Struct, frozen=True):
    """All inboxes as the tags they accept, all structs by tag, in the order of the walk, and one digest of it all."""

    version: int
    inboxes: dict[str, tuple[str, ...]]
    structs: dict[str, StructDescription]
    digest: str

    @property
    def digests(self) -> dict[str, str]:
        """A digest per struct, then one per inbox."""
        structs = {tag: struct.digest for tag, struct in self.structs.items()}
        return structs | {f"inbox {name}": _digest(tags)[:16] for name, tags in self.inboxes.items()}

    def first_difference(self, theirs: Mapping[str, str]) -> str | None:
        """The first struct or inbox whose digest is another one in `theirs`, or is missing on one side."""
        ours = self.digests
        names = [*ours, *(name for name in theirs if name not in ours)]
        return next((name for name in names if ours.get(name) != theirs.get(name)), None)


def fingerprint(inboxes: Mapping[str, Any], version: int) -> Fingerprint:
    """The fingerprint of these inboxes: a union of Message structs, or a single one, by name of the receiver.

    Raises TypeError for a field of a type that the description does not know, or for two structs with one tag.
    """
    walk = _Walk()
    accepted = {name: walk.inbox(inspect.type_info(inbox)) for name, inbox in inboxes.items()}
    content = (version, accepted, {tag: struct.digest for tag, struct in walk.structs.items()})
    return Fingerprint(version, accepted, walk.structs, _digest(content))


class _Walk:
    """Visits structs depth first, the outer one before those it holds, each once."""

    def __init__(self) -> None:
        self.structs: dict[str, StructDescription] = {}
        self._classes: dict[str, type] = {}

    def inbox(self, declared: inspect.Type) -> tuple[str, ...]:
        arms = declared.types if isinstance(declared, inspect.UnionType) else (declared,)
        return tuple(self._struct(arm) for arm in arms)

    def _struct(self, declared: inspect.Type) -> str:
        if not isinstance(declared, inspect.StructType):
            raise TypeError(f"{declared} is no struct; inboxes hold message structs")
        tag = _name_of(declared)
        if self._classes.setdefault(tag, declared.cls) is not declared.cls:
            raise TypeError(f"two structs have the tag {tag}: {self._classes[tag]} and {declared.cls}")
        if tag not in self.structs:
            self.structs[tag] = _describe(declared)
            for field in declared.fields:
                for nested in _structs_in(field.type):
                    self._struct(nested)
        return tag


def _describe(declared: inspect.StructType) -> StructDescription:
    layout = f"array_like={declared.array_like} tag={declared.tag!r} closed={declared.forbid_unknown_fields}"
    fields = tuple(FieldDescription(f.name, _text(f.type), _default(f), column_of(f.type)) for f in declared.fields)
    tag = _name_of(declared)
    return StructDescription(
        tag, layout, fields, _digest((tag, layout, fields))[:16], python.getdoc(declared.cls) or ""
    )


def _name_of(declared: inspect.StructType) -> str:
    return str(declared.tag or declared.cls.__name__)


def _default(field: inspect.Field) -> str | None:
    if field.required:
        return None
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return msgspec.json.encode(value).decode()


def _structs_in(declared: inspect.Type) -> Iterator[inspect.StructType]:
    match declared:
        case inspect.StructType():
            yield declared
        case inspect.UnionType(types=inner) | inspect.TupleType(item_types=inner):
            for item in inner:
                yield from _structs_in(item)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            yield from _structs_in(item)
        case inspect.DictType(value_type=item) | inspect.Metadata(type=item):
            yield from _structs_in(item)


def _text(declared: inspect.Type) -> str:
    """A type as one line that is equal exactly where two sides decode alike; nested structs by their tags."""
    match declared:
        case inspect.Metadata(type=item):
            return _text(item) + (f":{column}" if (column := column_of(declared)) else "")
        case inspect.StructType():
            return _name_of(declared)
        case inspect.UnionType(types=arms):
            return " | ".join(_text(arm) for arm in arms)
        case inspect.EnumType(cls=cls):
            return f"{cls.__name__}{{{', '.join(_member(member) for member in cls)}}}"
        case inspect.LiteralType(values=values):
            return f"literal[{', '.join(repr(value) for value in values)}]"
        case _:
            return _plain_text(declared)


def _plain_text(declared: inspect.Type) -> str:
    match declared:
        case inspect.TupleType(item_types=items):
            return f"tuple[{', '.join(_text(item) for item in items)}]"
        case inspect.VarTupleType(item_type=item):
            return f"tuple[{_text(item)}, ...]{_bounds(declared)}"
        case inspect.ListType(item_type=item):
            return f"list[{_text(item)}]{_bounds(declared)}"
        case inspect.DictType(key_type=key, value_type=value):
            return f"dict[{_text(key)}, {_text(value)}]{_bounds(declared)}"
        case _ if (name := _SCALARS.get(type(declared))) is not None:
            return f"{name}{_bounds(declared)}"
        case _:
            raise TypeError(f"fields of type {declared} cannot be described; see actorlm/runtime/fingerprint.py")


_SCALARS: dict[type, str] = {
    inspect.BoolType: "bool",
    inspect.NoneType: "None",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
}
_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


def _bounds(declared: inspect.Type) -> str:
    set_ones = [(name, value) for name in _BOUNDS if (value := getattr(declared, name, None)) is not None]
    return f"({', '.join(f'{name}={value!r}' for name, value in set_ones)})" if set_ones else ""


def _member(member: Enum) -> str:
    return f"{member.name}={member.value!r}"


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()
