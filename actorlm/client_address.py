"""Where a client finds a frontend: from an address, a run directory, or nothing, to one address that may be used."""

import re
import secrets
from pathlib import Path

from actorlm.errors import ConfigError, Unavailable
from actorlm.instance import running
from actorlm.topology import Role


def frontend_address(where: str | Path | None) -> str:
    """An `ipc://` or `tcp://` address, a run directory as `actorlm ps` shows it, or None for the one that runs.

    Of several frontends one is chosen at random. Raises ConfigError for what is no address, and if several trees run;
    Unavailable if none does.
    """
    if where is None:
        return _of_directory(_only_running())
    if isinstance(where, str) and "://" in where:
        _check(where)
        return where
    return _of_directory(Path(where))


def _check(address: str) -> None:
    scheme, _, rest = address.partition("://")
    if scheme not in ("ipc", "tcp"):
        raise ConfigError(f"{address} begins with {scheme}://; a client connects to ipc:// or tcp://")
    if scheme == "tcp" and not re.fullmatch(r"[^:*]+:[0-9]+|\[[0-9A-Fa-f:]+\]:[0-9]+", rest):
        raise ConfigError(f"{address} is no address; give tcp://HOST:PORT, or tcp://[IPV6]:PORT")


def _only_running() -> Path:
    match running():
        case [directory]:
            return directory
        case []:
            raise Unavailable("no tree of this user is running; start one with `actorlm up`")
        case several:
            found = ", ".join(map(str, several))
            raise ConfigError(f"{len(several)} trees are running; name the directory of one of them: {found}")


def _of_directory(directory: Path) -> str:
    sockets = sorted(directory.glob(f"{Role.FRONTEND}-*"))
    if not sockets:
        raise Unavailable(f"{directory} holds no socket of a frontend: nothing runs there, or it is starting")
    return f"ipc://{secrets.choice(sockets)}"
