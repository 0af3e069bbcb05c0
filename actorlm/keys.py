"""Keys by role, as files: what a directory of keys holds, and who may read it.

`DIR/secret/NAME.toml` is a key pair, `DIR/public/NAME.toml` its public half, each with the role that it speaks for. The
key that is named after its role is the role's own; roles that only connect may have others. Whoever holds a public file
believes its role, so nobody else may write to the directory; nobody else may read it at all.
"""

import stat
import tomllib
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from actorlm.errors import ConfigError, reason_of
from actorlm.ownership import OTHERS_WRITE, check_owner
from actorlm.topology import Role

LISTENING = frozenset({Role.SUPERVISOR, Role.FRONTEND, Role.BALANCER, Role.DETOKENIZER, Role.ENGINE})
"""Roles that others connect to, who must know the one key that is there."""

SECRET, PUBLIC = "secret", "public"
OTHERS = stat.S_IRWXG | stat.S_IRWXO

Z85 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}\Z")]
"""32 bytes in ZeroMQ's letters."""


class PublicKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of `public`."""

    role: Role
    public: Z85


class KeyPair(PublicKey, frozen=True, forbid_unknown_fields=True):
    """A file of `secret`. Its text never shows the secret."""

    secret: Z85

    def __repr__(self) -> str:
        return f"KeyPair(role={self.role!r}, public={self.public!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("role", self.role), ("public", self.public)]


K = TypeVar("K", bound=PublicKey)


class KnownKey(msgspec.Struct, frozen=True):
    """Whom a public key belongs to."""

    name: str
    role: Role


class KeyDirectory:
    """A directory that `actorlm keys` has made, or a part of one. Raises ConfigError naming what is wrong with it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        _check(self.path, OTHERS)
        _check(self.path / PUBLIC, OTHERS_WRITE)

    def own(self, role: str) -> KeyPair:
        """The secret that a process of this role uses: the role's own, else the only one there is of that role."""
        folder = self.path / SECRET
        _check(folder, OTHERS)
        found = {path.stem: pair for path in _files(folder) if (pair := _read(path, KeyPair, OTHERS)).role == role}
        if role not in found and len(found) > 1:
            raise ConfigError(f"{folder} has several keys of role {role}: {', '.join(found)}; leave one of them there")
        for pair in (found[role],) if role in found else found.values():
            return pair
        raise ConfigError(f"{folder} has no key of role {role}; take it from where the keys were made")

    def of_server(self, role: str) -> str:
        """The public key of those who listen as this role."""
        path = self.path / PUBLIC / f"{role}.toml"
        key = _read(path, PublicKey, OTHERS_WRITE)
        if key.role != role:
            raise ConfigError(f"{path} is a key of role {key.role}, not {role}; copy the files anew")
        return key.public

    def known(self) -> dict[str, KnownKey]:
        """Whoever may come, by public key."""
        known: dict[str, KnownKey] = {}
        for path in _files(self.path / PUBLIC):
            key = _read(path, PublicKey, OTHERS_WRITE)
            if key.public in known:
                raise ConfigError(f"{path} has the same key as {known[key.public].name}; remove one of them")
            known[key.public] = KnownKey(path.stem, key.role)
        return known

    def state(self) -> object:
        """Another value whenever the public keys may be others."""
        folder = self.path / PUBLIC
        try:
            return _stamp(folder), *((path.name, _stamp(path)) for path in _files(folder))
        except OSError as error:
            raise ConfigError(f"{folder}: {reason_of(error)}") from None


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".toml" and not path.name.startswith("."))
    except OSError as error:
        raise ConfigError(f"{folder}: {reason_of(error)}") from None


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read(path: Path, kind: type[K], forbidden: int) -> K:
    _check(path, forbidden)
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), kind)
    except OSError as error:
        raise ConfigError(f"{path}: {reason_of(error)}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        raise ConfigError(f"{path} is no key file; take it anew from where the keys were made") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path} is no key file: {error}") from None


def _check(path: Path, forbidden: int) -> None:
    """Raises ConfigError if others than its owner may do with it what they must not, or if it is not ours."""
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"{path}: {reason_of(error)}; `actorlm keys` makes a directory of keys") from None
    check_owner(path, status)
    mode = stat.S_IMODE(status.st_mode)
    if mode & forbidden:
        what = "read" if forbidden == OTHERS else "written"
        raise ConfigError(f"{path} can be {what} by others (mode {mode:04o}): chmod go-rwx {path}")
