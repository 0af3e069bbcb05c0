"""Which sockets of a tree are TCP, and where: those that are pinned, and those that another host reaches. Pure.

The same on all hosts, so that each knows where the others are before it has heard of them, and so that a firewall can.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from actorlm.addresses import Tcp, parse_ports
from actorlm.config import Config
from actorlm.deployment import nearest
from actorlm.errors import ConfigError

SUPERVISOR = "supervisor"


class Ends(Protocol):
    """A process: its host, the sockets that it binds, patterns of those that it connects to."""

    @property
    def host(self) -> str:
        """Empty if there is only this machine."""

    @property
    def binds(self) -> tuple[str, ...]:
        """Names."""

    @property
    def connects(self) -> tuple[str, ...]:
        """Names, or patterns with `*`."""


def tcp_sockets(config: Config, processes: Sequence[Ends]) -> dict[str, str]:
    """Addresses by the socket's name; ports are dealt in the order of the plan, the supervisor's first.

    Raises ConfigError for a pin of no socket, and if a host has too few ports.
    """
    binders = {socket: process.host for process in processes for socket in process.binds}
    for name in config.pins:
        if name not in binders:
            raise ConfigError(f"sockets.{name} is no socket of this tree{nearest(name, binders, 'sockets.')}")
    reached = [name for name, host in binders.items() if _is_reached(name, host, config, processes)]
    found = dict(config.pins)
    for host in config.hosts:
        found |= _dealt(config, host, [name for name in reached if binders[name] == host and name not in found])
    return found


def supervisor_address(config: Config) -> str | None:
    """Where the supervisor listens, if that is not in its run directory alone."""
    pinned = config.pins.get(SUPERVISOR)
    if pinned is None and len(config.hosts) > 1:
        return _dealt(config, config.lead, [SUPERVISOR])[SUPERVISOR]
    return pinned


def _is_reached(socket: str, host: str, config: Config, processes: Sequence[Ends]) -> bool:
    """Whether anybody on another host connects to it. Each host connects to the supervisor."""
    if socket == SUPERVISOR:
        return len(config.hosts) > 1
    name = socket.removesuffix("-tokens")  # whoever connects to a detokenizer is told this one's address
    return any(
        process.host != host and any(fnmatchcase(name, pattern) for pattern in process.connects)
        for process in processes
    )


def _dealt(config: Config, host: str, names: Sequence[str]) -> dict[str, str]:
    address, ports = config.hosts[host].address, parse_ports("sockets.ports", config.sockets.ports)
    free = [str(at) for port in ports if str(at := Tcp(address, port)) not in config.pins.values()]
    if len(free) < len(names):
        raise ConfigError(
            f"sockets.ports is {config.sockets.ports!r}: host {host} needs {len(names)} ports, and {len(free)} of these"
            " are free; give a longer range"
        )
    return dict(zip(names, free, strict=False))
