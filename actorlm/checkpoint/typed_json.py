"""A model's JSON files as typed structs. Whatever is wrong with one is a ModelError that names the file and the key."""

from pathlib import Path
from typing import TypeVar

import msgspec

from actorlm.errors import ModelError, reason_of

T = TypeVar("T")


def read_json(path: Path, kind: type[T]) -> T:
    """The content of a JSON file as a `kind`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {reason_of(error)}") from error
    return decode_json(data, kind, path)


def decode_json(data: bytes, kind: type[T], path: Path) -> T:
    """Bytes of JSON, read from `path`, as a `kind`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is damaged: {error}") from None


def convert(values: object, kind: type[T], where: str) -> T:
    """Decoded values as a `kind`; `where` begins the message of what is wrong with them."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: {error}") from None
