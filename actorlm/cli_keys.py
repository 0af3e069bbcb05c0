"""`actorlm keys`: makes the keys of the sockets between hosts. Imports of what it needs wait until it runs."""
# ruff: noqa: PLC0415 - see above

from pathlib import Path

import rich_click as click

from actorlm.cli_end import finish
from actorlm.errors import ConfigError
from actorlm.topology import Role


@click.command()
@click.argument("directory", metavar="DIR", type=Path)
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice([role.value for role in Role]),
    help="only this role; repeatable [all]",
)
@click.option("--add", "added", metavar="NAME", help="one more key pair of one --role, into a DIR that exists")
@click.option("--from", "source", metavar="OTHER", type=Path, help="copy from OTHER: its public keys and each --name")
@click.option("--name", "names", multiple=True, metavar="NAME", help="secret to copy with --from; repeatable")
def keys(
    directory: Path, roles: tuple[str, ...], added: str | None, source: Path | None, names: tuple[str, ...]
) -> None:
    """Make a directory of CURVE key pairs, one for each role that talks over TCP, for `[security] keys`."""

    def write() -> int:
        from actorlm.make_keys import add, make, share

        _check(roles, added, source, names)
        if source is not None:
            share(source, directory, names)
        elif added is not None:
            add(directory, added, Role(roles[0]))
        else:
            make(directory, [Role(role) for role in roles] or list(Role))
        click.echo(f"{directory}: secrets of {', '.join(_secrets(directory)) or 'no role'}")
        return 0

    finish(write)


def _check(roles: tuple[str, ...], added: str | None, source: Path | None, names: tuple[str, ...]) -> None:
    if added is not None and len(roles) != 1:
        raise ConfigError(f"--add {added} needs the one --role that the key is for")
    if source is not None and (added is not None or roles):
        raise ConfigError(f"--from {source} copies keys, by --name; it makes none, so leave out --add and --role")
    if names and source is None:
        raise ConfigError(f"--name {names[0]} says what to copy; it needs --from")


def _secrets(directory: Path) -> list[str]:
    return sorted(path.stem for path in (directory / "secret").glob("*.toml"))
