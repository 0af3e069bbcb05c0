"""`actorlm api-keys`: makes, lists and removes the keys of HTTP. Imports of what they need wait until they run."""
# ruff: noqa: PLC0415 - see above

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from actorlm.cli_end import finish
from actorlm.errors import ConfigError

if TYPE_CHECKING:
    from actorlm.api.key_file import Key

LIMITS = ("max_requests", "requests_per_minute", "tokens_per_minute", "cache_salt")
"""What a key may have beside its weight, as `list` shows it."""

_file = click.option("--file", type=Path, required=True, metavar="FILE", help="the file of hashes, TOML")
_name = click.argument("name")


@click.group("api-keys")
def api_keys() -> None:
    """Keys that clients of HTTP need: `up --api-keys-file FILE`."""


@api_keys.command("add")
@_name
@_file
@click.option("--weight", type=float, help="share of the service, beside the other keys' [1]")
@click.option("--max-requests", type=int, help="requests that may be open at once [no limit]")
@click.option("--requests-per-minute", type=int, help="requests that may begin in a minute [no limit]")
@click.option("--tokens-per-minute", type=int, help="tokens of prompts and outputs in a minute [no limit]")
@click.option("--cache-salt", help="only keys of the same salt share cached prefixes [shared by all without one]")
@click.option("--expires", metavar="TIME", help="like 2027-06-30 or 2027-06-30T12:00:00Z, in UTC [never]")
@click.option("--key-stdin", is_flag=True, help="take the key from standard input instead of making one")
def add_key(name: str, file: Path, *, expires: str | None, key_stdin: bool, **limits: Any) -> None:
    """Make a key for NAME and print it, this once; the file keeps its hash alone."""

    def add() -> int:
        import msgspec

        from actorlm.api import key_edit
        from actorlm.api.key_file import Key, check_strength, hash_of, make_key
        from actorlm.invalid import fault

        key = sys.stdin.readline().rstrip("\r\n") if key_stdin else make_key()
        check_strength(key)
        given: dict[str, Any] = {"name": name, "hash": hash_of(key)}
        given |= {field: value for field, value in limits.items() if value is not None}
        if expires is not None:
            given["expires"] = _time(expires)
        try:
            entry = msgspec.convert(given, Key)
        except msgspec.ValidationError as error:
            raise ConfigError(fault(error, given).message) from None
        key_edit.add(file, entry)
        if not key_stdin:
            click.echo(key)
        click.echo(f"actorlm: {name} is in {file}; the key is not, and cannot be shown again", err=True)
        return 0

    finish(add)


@api_keys.command("list")
@_file
def list_keys(file: Path) -> None:
    """Show names, limits and expiry of a file's keys."""

    def show() -> int:
        from actorlm.api.key_file import read_keys

        for key in read_keys(file):
            click.echo(f"{key.name}  {', '.join(_described(key))}")
        return 0

    finish(show)


@api_keys.command("remove")
@_name
@_file
def remove_key(name: str, file: Path) -> None:
    """Take NAME out of the file: its key is refused within a second."""

    def remove() -> int:
        from actorlm.api import key_edit

        key_edit.remove(file, name)
        return 0

    finish(remove)


def _described(key: "Key") -> list[str]:
    limits = ((name, getattr(key, name)) for name in LIMITS)
    said = [f"weight {key.weight:g}", *(f"{name} {value}" for name, value in limits if value is not None)]
    if key.expires is not None:
        over = datetime.now(UTC) >= key.expires
        said.append(f"expire{'d' if over else 's'} {key.expires.isoformat()}")
    return said


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--expires is {text!r}; it must be like 2027-06-30 or 2027-06-30T12:00:00Z") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
