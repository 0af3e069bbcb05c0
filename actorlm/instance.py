"""The private run directory of one tree: where its `ipc://` sockets live, and how `ps` finds them.

A directory is held by a lock for as long as its supervisor lives, whatever ends it, so one whose lock is free
is left over from a hard kill and can be swept by anybody of the same user.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
from pathlib import Path

import msgspec

from actorlm.config import runtime_directories
from actorlm.errors import ConfigError
from actorlm.ownership import check_above

PRIVATE = 0o700
REACH_FILE = "reach.json"
LONGEST_BASE = 64
"""Bytes of a base directory that leave room for `/12345678/detokenizer-63-tokens` within the 107 of an ipc path."""


class Reach(msgspec.Struct, frozen=True):
    """Where a supervisor listens, and what its operators need: a directory of `keys`, or to do without (`insecure`)."""

    address: str
    keys: str | None = None
    insecure: bool = False


def base_directory() -> Path:
    """The first candidate that is short enough and can be ours alone, made with mode 0700.

    Raises ConfigError if none can: one is owned by someone else, is a symbolic link, or could be replaced by others.
    """
    refused = []
    for candidate in runtime_directories():
        if len(os.fsencode(candidate)) > LONGEST_BASE:
            refused.append(f"{candidate}: longer than {LONGEST_BASE} bytes")
            continue
        try:
            check_above(candidate)
            candidate.mkdir(mode=PRIVATE, exist_ok=True)
            _check_private(candidate)
        except (OSError, ConfigError) as error:
            refused.append(f"{candidate}: {error}")
            continue
        return candidate
    raise ConfigError(
        f"no directory for the tree's sockets; set XDG_RUNTIME_DIR to one of yours ({'; '.join(refused)})"
    )


def _check_private(directory: Path) -> None:
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError("is no directory")
    if status.st_uid != os.getuid():
        raise ConfigError(f"belongs to user {status.st_uid}, not to {os.getuid()}")
    if stat.S_IMODE(status.st_mode) != PRIVATE:
        directory.chmod(PRIVATE)


class Instance:
    """A run directory that is ours until `close`, or until this process ends."""

    def __init__(self, directory: Path, lock: int) -> None:
        self.directory = directory
        self._lock = lock

    @classmethod
    def create(cls) -> "Instance":
        """Makes a new run directory, after sweeping those whose supervisors are gone."""
        while True:
            base = base_directory()
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                sweep(base)
                directory = base / secrets.token_hex(4)
                directory.mkdir(mode=PRIVATE)
                lock = _try_lock(directory)
                if lock is not None:
                    return cls(directory, lock)

    def publish(self, reach: Reach) -> None:
        """Tells operators of this machine how the supervisor is reached, if that is not in this directory."""
        if not reach.address.startswith("ipc:"):
            (self.directory / REACH_FILE).write_bytes(msgspec.json.encode(reach))

    def close(self) -> None:
        """Removes the directory, and the one above it if it is empty then; frees the lock."""
        shutil.rmtree(self.directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.directory.parent.rmdir()
        os.close(self._lock)


def _try_lock(directory: Path) -> int | None:
    """An open descriptor of the directory that holds its lock, or None if somebody else holds it or it vanished."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == directory.lstat().st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def sweep(base: Path) -> None:
    """Removes the run directories below `base` that no living supervisor holds."""
    for directory in base.iterdir():
        if (lock := _try_lock(directory)) is not None:
            shutil.rmtree(directory, ignore_errors=True)
            os.close(lock)


def running() -> list[Path]:
    """The run directories of this user that living supervisors hold. A base that is not private is not looked into."""
    bases = [base for base in runtime_directories() if _is_private(base)]
    return [directory for base in bases for directory in sorted(base.iterdir()) if is_running(directory)]


def reach_of(directory: Path) -> Reach:
    """How the supervisor of a run directory is reached."""
    try:
        return msgspec.json.decode((directory / REACH_FILE).read_bytes(), type=Reach)
    except (FileNotFoundError, msgspec.DecodeError):  # not written, or not to its end
        return Reach(f"ipc://{directory}/supervisor")


def find_in_base(name: str) -> Path | None:
    """A file that a process of this user has put beside the run directories, or None."""
    candidates = [base / name for base in runtime_directories() if _is_private(base)]
    return next((path for path in candidates if path.exists()), None)


def _is_private(directory: Path) -> bool:
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == PRIVATE


def is_running(directory: Path) -> bool:
    """Whether a living supervisor holds this run directory."""
    lock = _try_lock(directory)
    if lock is not None:
        os.close(lock)
    return lock is None and directory.is_dir()
