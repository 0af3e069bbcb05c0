"""Columns are whole: the bytes of an int32 column are a multiple of 4, also inside of nested messages.

Decoding cannot see this, because a column is plain bytes on the wire; the actor that reads it must not be the first to.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import inspect

from actorlm.runtime.errors import BadBody

ITEM_BYTES = {"uint8": 1, "int32": 4, "int64": 8, "float32": 4}

Check = Callable[[Any], None]


def column_of(declared: inspect.Type) -> str:
    """The element type of a column, or "" for any other type."""
    extra = declared.extra if isinstance(declared, inspect.Metadata) else None
    return str((extra or {}).get("column", ""))


def whole_columns(structs: Iterable[type]) -> dict[type, Check]:
    """For each struct that holds columns, a function that raises BadBody if one of them is not whole."""
    checks = {struct: _check_of(inspect.type_info(struct)) for struct in structs}
    return {struct: check for struct, check in checks.items() if check is not None}


def _check_of(declared: inspect.Type) -> Check | None:
    match declared:
        case inspect.StructType(fields=fields):
            checks = [(f.name, check) for f in fields if (check := _check_of(f.type)) is not None]
            return _each_field(declared.cls.__name__, checks) if checks else None
        case inspect.VarTupleType(item_type=item):
            check = _check_of(item)
            return _each_item(check) if check is not None else None
        case inspect.UnionType(types=types):
            by_type = {_python_type(one): check for one in types if (check := _check_of(one)) is not None}
            return _by_its_type(by_type) if by_type else None
        case inspect.Metadata(type=inner) if not column_of(declared):
            return _check_of(inner)
        case _:
            size = ITEM_BYTES.get(column_of(declared), 1)
            return _multiple_of(size) if size > 1 else None


def _python_type(declared: inspect.Type) -> type:
    """Of a union's members that hold columns; a type that is not here needs a line here."""
    match declared:
        case inspect.StructType(cls=cls):
            return cls
        case inspect.VarTupleType():
            return tuple
        case inspect.Metadata(type=inner) if not column_of(declared):
            return _python_type(inner)
        case _:
            assert column_of(declared), f"{declared} in a union holds columns that nothing checks"
            return bytes


def _by_its_type(checks: Mapping[type, Check]) -> Check:
    def check_one(value: Any) -> None:
        check = checks.get(type(value))
        if check is not None:
            check(value)

    return check_one


def _each_field(struct: str, checks: list[tuple[str, Check]]) -> Check:
    def check_fields(message: Any) -> None:
        for name, check in checks:
            try:
                check(getattr(message, name))
            except BadBody as error:
                raise BadBody(f"{struct}.{name}: {error}") from None

    return check_fields


def _each_item(check: Check) -> Check:
    def check_items(items: Iterable[Any]) -> None:
        for item in items:
            check(item)

    return check_items


def _multiple_of(size: int) -> Check:
    def check_length(column: bytes) -> None:
        if len(column) % size:
            raise BadBody(f"a column of {len(column)} bytes; its items have {size}")

    return check_length
