"""A supervised process, seen from its supervisor, and the same pipes seen from the child.

A child is started by exec from the supervisor's main thread. Its standard input is the control pipe: the first line is
its specification, and its end means that the supervisor is gone. Its standard output carries at most one line, the
`LastWords` of a child that fails. Both work when no socket does.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from actorlm.errors import ActorlmError

PR_SET_PDEATHSIG = 1
SUPERVISORS_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Signals that ask a tree to end. Sent to all of its processes they mean the supervisor, which tells the others."""


class LastWords(msgspec.Struct, frozen=True):
    """Why a child exits with a non-zero status. `expected` errors need no traceback to be understood."""

    error: str
    message: str
    expected: bool
    traceback: str


class SupervisedProcess(Protocol):
    """What a supervisor needs of a process, whoever started it."""

    pid: int

    def watch(self, add_reader: Callable[[int, Callable[[], None]], None], on_exit: Callable[[], None]) -> None:
        """Has the event loop call `on_exit` when the process has ended."""

    def reap(self, remove_reader: Callable[[int], object]) -> str:
        """Lets go of the ended process and says how it ended."""

    def signal(self, number: int) -> None:
        """Sends a signal; a process that has ended already does not mind."""


class ChildProcess:
    """One running child. `on_exit` is called once, from the event loop, when it has ended."""

    def __init__(self, process: "subprocess.Popen[bytes]", pidfd: int) -> None:
        self._process = process
        self._pidfd = pidfd
        self.pid = process.pid

    @classmethod
    def spawn(
        cls,
        arguments: Sequence[str],
        specification: bytes,
        environment: Mapping[str, str],
        sockets: Sequence[socket.socket],
    ) -> "ChildProcess":
        """Starts `python -m ...arguments` in a session of its own and writes its one-line specification."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SUPERVISORS_SIGNALS)  # inherited: no moment without
        try:
            process = subprocess.Popen(
                # -P: nothing is imported from where we are
                [sys.executable, "-P", "-m", *arguments, "--parent", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,
                pass_fds=[sock.fileno() for sock in sockets],
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        child = cls(process, os.pidfd_open(process.pid))
        with contextlib.suppress(BrokenPipeError):  # if it has died already, its exit tells
            os.write(child._control, specification + b"\n")
        return child

    @property
    def _control(self) -> int:
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def watch(self, add_reader: Callable[[int, Callable[[], None]], None], on_exit: Callable[[], None]) -> None:
        """Has the event loop call `on_exit` when the process has ended."""
        add_reader(self._pidfd, on_exit)

    def reap(self, remove_reader: Callable[[int], object]) -> str:
        """Collects the ended process and says how it ended."""
        remove_reader(self._pidfd)
        os.close(self._pidfd)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        status = self._process.wait()
        self._process.stdin.close()
        with self._process.stdout as report:
            return describe_exit(status, report.read())

    def signal(self, number: int) -> None:
        """Sends a signal; a process that has ended already does not mind."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)


def describe_exit(status: int, report: bytes) -> str:
    """One line, or a line and a traceback: the last words if there are any, else the exit status or signal."""
    killed = f"killed by {signal.Signals(-status).name}" if status < 0 else ""
    return describe_words(report) or killed or f"exited with status {status}"


def describe_words(report: bytes) -> str:
    """The last words, one line, or a line and a traceback; empty if there are none."""
    try:
        words = msgspec.json.decode(report, type=LastWords)
    except msgspec.DecodeError:
        return ""
    if words.expected:
        return words.message
    return f"{words.error}: {words.message}\n{words.traceback}".rstrip()


def run_reporting(run: Callable[[], None], report: int) -> int:
    """Runs the work of this process, whose failure becomes its last words; returns its exit status."""
    try:
        run()
    except Exception as error:  # noqa: BLE001 - whatever ended it
        os.write(report, _last_words(error))
        return 1
    return 0


def _last_words(error: Exception) -> bytes:
    lines = "".join(traceback.format_exception(error))
    words = LastWords(type(error).__name__, str(error), isinstance(error, ActorlmError), lines[-16_000:])
    return msgspec.json.encode(words)


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process with its supervisor; exits if that one is gone already.

    Called before any slow import. The signal follows the supervisor's main thread, which did the exec.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def take_report_pipe() -> int:
    """Keeps the report pipe for last words, and lets whatever is printed go to standard error instead."""
    report = os.dup(1)
    os.dup2(2, 1)
    return report


def read_specification() -> bytes:
    """The one line that the supervisor has written to the control pipe."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(0, 1 << 16)
        if not chunk:
            os._exit(1)
        line += chunk
    return line


def leave_with_supervisor() -> None:
    """Reader of the control pipe: its end means that the supervisor is gone."""
    if not os.read(0, 1):
        os._exit(1)
