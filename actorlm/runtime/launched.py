"""Processes that a launcher has started, seen from the one that leads them, and the same ties seen from them.

The leader listens on a socket file in a private directory; each of the others connects to it and says its rank in one
line. From then on the connection is what its pipes are to a child: one line of specification comes, at most one of
last words goes, and its end means that the leader is gone. Whose process it is, the kernel tells.
"""

import contextlib
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Self

from actorlm.errors import ConfigError, PeerMissing
from actorlm.runtime.child import describe_words

CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
INTRODUCTION_S = 5.0
"""Time that a process gets to say its rank once it has connected."""
RETRY_S = 0.05


class LaunchedProcess:
    """One process of the launcher's, and the connection to it."""

    def __init__(self, rank: int, pid: int, connection: socket.socket) -> None:
        self.rank = rank
        self.pid = pid
        self._connection = connection
        self._pidfd = os.pidfd_open(pid)

    def begin(self, specification: bytes) -> Self:
        """Tells it what to run, in one line."""
        with contextlib.suppress(OSError):  # if it has died already, its exit tells
            self._connection.sendall(specification + b"\n")
        return self

    def watch(self, add_reader: Callable[[int, Callable[[], None]], None], on_exit: Callable[[], None]) -> None:
        """Has the event loop call `on_exit` when the process has ended."""
        add_reader(self._pidfd, on_exit)

    def reap(self, remove_reader: Callable[[int], object]) -> str:
        """Lets go of the ended process and says how it ended. Its exit status only the launcher knows."""
        remove_reader(self._pidfd)
        os.close(self._pidfd)
        with self._connection:
            return describe_words(_all_of(self._connection)) or f"rank {self.rank} has ended without a word"

    def signal(self, number: int) -> None:
        """Sends a signal; a process that has ended already does not mind."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def fileno(self) -> int:
        """Readable when the process has ended."""
        return self._pidfd


class Door:
    """Where the leader waits for the others. Raises ConfigError if another leader waits at the same place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if _answers(path):
            raise ConfigError(f"rank 0 of another job waits at {path}; give each job a MASTER_PORT of its own")
        path.unlink(missing_ok=True)
        self._socket.bind(str(path))
        self._socket.listen(1024)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nobody comes in any more, and no name is left."""
        if self._socket.fileno() >= 0:
            self._socket.close()
            self._path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._path.parent.rmdir()

    def gather(self, world_size: int, patience_s: float) -> dict[int, LaunchedProcess]:
        """Ranks 1 to `world_size` - 1, once all have come; then the door is closed.

        Raises PeerMissing for those that have not come within `patience_s`, and for one that has ended meanwhile.
        """
        deadline = time.monotonic() + patience_s
        came: dict[int, LaunchedProcess] = {}
        while missing := [rank for rank in range(1, world_size) if rank not in came]:
            _check_alive(came.values())
            if not self._wait(came.values(), deadline):
                raise PeerMissing(f"rank {_listed(missing)} of {world_size} did not come within {patience_s:g} s")
            if newcomer := _admit(self._socket, missing):
                came[newcomer.rank] = newcomer
        self.close()
        return came

    def _wait(self, came: Collection[LaunchedProcess], deadline: float) -> bool:
        """Until one more comes or one of those that came ends; False at the deadline."""
        watched = [self._socket.fileno(), *(one.fileno() for one in came)]
        return bool(select.select(watched, [], [], max(0.0, deadline - time.monotonic()))[0])


def _check_alive(came: Collection[LaunchedProcess]) -> None:
    ended, _, _ = select.select([one.fileno() for one in came], [], [], 0)
    for one in came:
        if one.fileno() in ended:
            raise PeerMissing(f"{one.reap(lambda _: None)} (pid {one.pid}) before all ranks had come")


def _admit(listening: socket.socket, missing: list[int]) -> LaunchedProcess | None:
    """Who has come, if anybody has, and not only to see whether somebody listens."""
    listening.settimeout(0)
    try:
        connection, _ = listening.accept()
    except BlockingIOError:
        return None
    pid, _, _ = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    connection.settimeout(INTRODUCTION_S)
    try:
        line = read_line(connection)
        if not line:
            return None
        rank = int(line)
    except (TimeoutError, ValueError) as error:
        raise PeerMissing(f"a process (pid {pid}) came and did not say its rank: {error}") from error
    if rank not in missing:
        raise ConfigError(f"a process (pid {pid}) says RANK {rank}, which is not one of those that are to come")
    if not pid:
        raise ConfigError(f"rank {rank} is in another container than rank 0; --executor external needs all in one")
    connection.settimeout(None)
    try:
        return LaunchedProcess(rank, pid, connection)
    except ProcessLookupError as error:
        raise PeerMissing(f"rank {rank} has ended without a word (pid {pid}) before all ranks had come") from error


def join(find: Callable[[], Path | None], rank: int, patience_s: float) -> socket.socket:
    """A connection to the leader that waits where `find` says, once it does.

    Raises PeerMissing if there is none within `patience_s`.
    """
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        path = find()
        if path is not None and (connection := _connected(path)):
            connection.sendall(f"{rank}\n".encode())
            return connection
        time.sleep(RETRY_S)
    raise PeerMissing(f"rank {rank} has not found rank 0 on this machine within {patience_s:g} s")


def read_line(connection: socket.socket) -> bytes:
    """One line, without its end; empty if the other end is gone."""
    line = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(1 << 16):
            line += chunk
            if line.endswith(b"\n"):
                return line[:-1]
    return b""


def _connected(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection


def _answers(path: Path) -> bool:
    connection = _connected(path)
    if connection is not None:
        connection.close()
    return connection is not None


def _all_of(connection: socket.socket) -> bytes:
    """What is left to read of a connection whose other end has ended, though its children may hold it."""
    connection.setblocking(False)
    left = b""
    with contextlib.suppress(OSError):
        while chunk := connection.recv(1 << 16):
            left += chunk
    return left


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
