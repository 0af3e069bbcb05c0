"""Who may change, replace or read a file: what ssh checks of the files that it trusts.

The super-user and we ourselves may do anything; nobody else may.
"""

import os
import stat
from pathlib import Path

from actorlm.errors import ConfigError

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_above(path: Path) -> None:
    """Whoever may rename what is in a directory above `path` can put something else in its place.

    Raises ConfigError where that is somebody else.
    """
    closest = path.parent.resolve()
    for above in (closest, *closest.parents):
        status = above.stat()
        check_owner(above, status)
        if status.st_mode & OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
            raise ConfigError(f"{above} can be written by others, and is not sticky")


def check_trusted(file: Path) -> None:
    """Raises ConfigError for a file that somebody else may change or replace, OSError for one that is not there."""
    real = file.resolve(strict=True)
    status = real.stat()
    check_owner(real, status)
    if status.st_mode & OTHERS_WRITE:
        raise ConfigError(f"{real} can be written by others; run: chmod go-w {real}")
    check_above(real)


def check_secret(file: Path) -> None:
    """As `check_trusted`, and for one that every user of the machine may read; its group may."""
    check_trusted(file)
    if file.stat().st_mode & stat.S_IROTH:
        raise ConfigError(f"{file} is a secret that everybody may read; run: chmod o-r {file}")


def check_owner(path: Path, status: os.stat_result) -> None:
    """Raises ConfigError for what belongs to somebody else, who could change who may do what with it."""
    if status.st_uid not in (0, os.getuid()):
        raise ConfigError(f"{path} belongs to user {status.st_uid}, who could change it; make it yours")
