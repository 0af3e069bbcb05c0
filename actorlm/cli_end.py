"""How every command ends: its exit status, and one line for an error of ours."""

import contextlib
import os
import sys
from collections.abc import Callable

import rich_click as click
import structlog

from actorlm.errors import ActorlmError, ConfigError

FAILED = 1
MISUSED = 2
INTERRUPTED = 130


def finish(command: Callable[[], int]) -> None:
    """Runs a command and exits with its status; an error of ours is one line."""
    try:
        status = command()
    except ActorlmError as error:
        click.echo(f"actorlm: {error.message}", err=True)
        status = _status(error)
    except SystemExit as end:
        status = int(end.code or 0)
    except KeyboardInterrupt:
        click.echo("actorlm: interrupted", err=True)
        status = INTERRUPTED
    with contextlib.suppress(OSError):  # their readers may be gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)  # nothing is left to do, and threads of libraries must not delay the end


def logged(command: Callable[[], int]) -> int:
    """Runs a command whose errors belong into the log; returns its exit status."""
    try:
        return command()
    except ActorlmError as error:
        structlog.get_logger().error(f"actorlm: {error.message}")
        return _status(error)


def _status(error: ActorlmError) -> int:
    return MISUSED if isinstance(error, ConfigError) else FAILED
