"""Who a process is: its role, its name, and which of the name's successive lives this one is."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

NAMESPACES = ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid", "/proc/self/ns/net")


class Identity(msgspec.Struct, frozen=True):
    """One life of one named actor.

    `incarnation` grows with every restart of the name: it is the Unix time in nanoseconds at which the life began, by
    the clock of whoever has started it, so that a machine's wrong clock, or its correction, changes no order.
    """

    role: str
    name: str
    incarnation: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"{self.name} ({self.role}, pid {self.pid} on {self.host}, incarnation {self.incarnation})"

    @property
    def route(self) -> bytes:
        """The routing id by which a server reaches this life and no other."""
        return f"{self.name}/{self.incarnation}".encode()


def role_of(name: str) -> str:
    """The role that a name says: an actor is named after its role, alone or with a dash and more behind it."""
    return name.partition("-")[0]


def this_process(role: str, name: str, incarnation: int | None = None) -> Identity:
    """The identity of a life in this process; it begins now unless `incarnation` says when."""
    began = time.time_ns() if incarnation is None else incarnation
    return Identity(role=role, name=name, incarnation=began, host=socket.gethostname(), pid=os.getpid())


def steady_clock(now_ns: int) -> Callable[[], int]:
    """A clock of nanoseconds that shows this time now and is never corrected."""
    ahead = now_ns - time.monotonic_ns()
    return lambda: time.monotonic_ns() + ahead


def machine() -> str:
    """The same for all processes that see each other's descriptors and loopback, and for no others."""
    paths = [Path(path) for path in NAMESPACES]
    if not all(path.exists() for path in paths):
        return socket.gethostname()
    return " ".join([paths[0].read_text().strip(), *(str(path.readlink()) for path in paths[1:])])
