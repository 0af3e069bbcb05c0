"""Changes of a file of API keys: a key is added or taken out, all at once or not at all.

Whatever else the file says stays as it is, comments too.
"""

import contextlib
import fcntl
import os
import re
import secrets
import tomllib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from actorlm.api.key_file import Key, parse, read_keys
from actorlm.errors import ConfigError, reason_of
from actorlm.ownership import check_trusted

BLOCK = re.compile(r"^(?=[ \t]*\[\[[ \t]*key[ \t]*\]\])", re.MULTILINE)


def add(file: Path, key: Key) -> None:
    """Appends a key; makes the file, for its owner alone. Raises ConfigError, having changed nothing."""
    with _changing(file):
        text = _read_if_there(file)
        entry = "[[key]]\n" + "".join(f"{name} = {_toml(value)}\n" for name, value in _builtins(key).items())
        _replace(file, f"{text.rstrip()}\n\n{entry}" if text.strip() else entry)


def remove(file: Path, name: str) -> None:
    """Takes a key out. Raises ConfigError, having changed nothing, for a name that is not there, or the last key."""
    with _changing(file):
        keys = read_keys(file)
        if name not in {key.name for key in keys}:
            raise ConfigError(f"{file}: no key is named {name!r}; there are {', '.join(key.name for key in keys)}")
        if len(keys) == 1:
            raise ConfigError(f"{file}: {name!r} is the last key, and a server does not start without; add one before")
        preamble, *blocks = BLOCK.split(file.read_text())
        kept = [block for block in blocks if tomllib.loads(block)["key"][0]["name"] != name]
        if len(kept) != len(keys) - 1:
            raise ConfigError(f"{file}: the keys are not written as [[key]] tables; remove {name!r} with an editor")
        _replace(file, preamble + "".join(kept))


def _builtins(key: Key) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(key, builtin_types=(datetime,))
    return built


def _toml(value: str | float | datetime) -> str:
    if isinstance(value, str):
        return f'"{value}"'  # names and hashes have no characters to escape
    return value.isoformat() if isinstance(value, datetime) else repr(value)


@contextlib.contextmanager
def _changing(file: Path) -> Iterator[None]:
    """Nobody else who does this changes the file in between."""
    try:
        directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"{file.parent}: {reason_of(error)}") from None
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _read_if_there(file: Path) -> str:
    if not file.exists():
        return ""
    try:
        check_trusted(file)
        return file.read_text()
    except (OSError, ConfigError) as error:
        raise ConfigError(f"{file}: {reason_of(error)}") from None


def _replace(file: Path, text: str) -> None:
    """At once: no reader sees half of it."""
    try:
        parse(text)
        mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
        made = file.resolve().with_name(f".{file.name}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as new:
            new.write(text)
        made.replace(file.resolve())
    except (OSError, ConfigError) as error:
        raise ConfigError(f"{file}: {reason_of(error)}") from None
