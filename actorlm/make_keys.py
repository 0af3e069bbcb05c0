"""What `actorlm keys` writes: a directory of key pairs, one more pair, or the part of a directory for another machine.

Nothing is ever overwritten. Directories have mode 0700 and files 0600 from the moment at which they exist.
"""

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

import zmq

from actorlm.errors import ConfigError, reason_of
from actorlm.keys import LISTENING, PUBLIC, SECRET, KeyDirectory
from actorlm.topology import Role

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
ABOUT = {
    SECRET: "# A secret key of actorlm. Whoever reads it can act as this role.",
    PUBLIC: "# A public key of actorlm. Whoever has the secret to it may come as this role.",
}


def make(path: Path, roles: Collection[Role]) -> list[str]:
    """A new directory with a key pair for each role; returns their names. Raises ConfigError if it exists."""
    _make_directory(path)
    for role in roles:
        _write_pair(path, role, role)
    return list(roles)


def add(path: Path, name: str, role: Role) -> None:
    """One more key pair in a directory. Raises ConfigError if there is one of this name, or may be no further one."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"--add {name}: a name has 1 to 64 letters, digits, - and _, a letter or digit first")
    if role in LISTENING and name != role:
        raise ConfigError(f"--add {name}: others connect to role {role} and know its one key; it has no further ones")
    if name in tuple(Role) and name != role:
        raise ConfigError(f"--add {name}: this is the name of another role's own key")
    KeyDirectory(path)
    _write_pair(path, name, role)


def share(source: Path, path: Path, names: Sequence[str]) -> None:
    """A new directory with the public keys of another, and the secrets of these names. Raises ConfigError."""
    KeyDirectory(source).known()
    present = {file.stem for file in (source / SECRET).glob("*.toml")}
    for name in names:
        if name not in present:
            raise ConfigError(f"--name {name}: {source / SECRET} has: {', '.join(sorted(present)) or 'no key'}")
    _make_directory(path)
    for kind, chosen in ((PUBLIC, [file.stem for file in (source / PUBLIC).glob("*.toml")]), (SECRET, names)):
        for name in chosen:
            _write(path / kind / f"{name}.toml", (source / kind / f"{name}.toml").read_text())


def _make_directory(path: Path) -> None:
    try:
        for directory in (path, path / SECRET, path / PUBLIC):
            directory.mkdir(mode=0o700)
            directory.chmod(0o700)
    except FileExistsError:
        raise ConfigError(f"{path} exists, and keys are never overwritten; choose another directory") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be made: {reason_of(error)}") from None


def _write_pair(path: Path, name: str, role: Role) -> None:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    lines = [f'role = "{role}"', f'public = "{public}"']
    _write(path / SECRET / f"{name}.toml", "\n".join([ABOUT[SECRET], *lines, f'secret = "{secret}"', ""]))
    _write(path / PUBLIC / f"{name}.toml", "\n".join([ABOUT[PUBLIC], *lines, ""]))


def _write(path: Path, text: str) -> None:
    """Whoever reads the directory meanwhile sees the whole file or none."""
    hidden = path.with_name(f".{path.name}")
    try:
        with os.fdopen(os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(text)
        os.link(hidden, path)
    except FileExistsError:
        raise ConfigError(f"{path} exists, and keys are never overwritten; choose another name") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {reason_of(error)}") from None
    finally:
        hidden.unlink(missing_ok=True)
