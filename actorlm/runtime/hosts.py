"""Which hosts are here: the decisions of the supervisor that leads, without sockets or clocks.

Each host but the lead is spoken for by an agent, a peer with a name of its own in each of its lives. One that was not
heard for so many ticks of the lead's own watcher is lost, and with it all processes of its host.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(slots=True)
class Host:
    """One host. `agent` is the peer that speaks for it, if it is here; `who` says which process of which machine."""

    name: str
    agent: str = ""
    who: str = ""
    silent_ticks: int = 0
    refused: str = ""
    """Why somebody could not speak for it, since it was here last."""


class Hosts:
    """The hosts of a tree but its lead, by name."""

    def __init__(self, names: Collection[str], *, silence_ticks: int) -> None:
        self._hosts = {name: Host(name) for name in names}
        self._silence_ticks = silence_ticks

    @property
    def missing(self) -> list[Host]:
        """Those that are not here."""
        return [host for host in self._hosts.values() if not host.agent]

    @property
    def agents(self) -> list[str]:
        """Of those that are here."""
        return [host.agent for host in self._hosts.values() if host.agent]

    def __contains__(self, name: object) -> bool:
        return name in self._hosts

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def of(self, agent: str) -> Host | None:
        """The host that an agent speaks for."""
        return next((host for host in self._hosts.values() if agent and host.agent == agent), None)

    def claimed(self, name: str, who: str) -> str:
        """Why nobody else can speak for a host now; empty if somebody can."""
        host = self._hosts[name]
        return f"host {name} is here already: {host.who}; it cannot be {who} too" if host.agent else ""

    def came(self, name: str, agent: str, who: str) -> None:
        """An agent speaks for a host from now on."""
        host = self._hosts[name]
        assert not host.agent, f"{host.agent} speaks for {name}"
        host.agent, host.who, host.silent_ticks, host.refused = agent, who, 0, ""

    def lost(self, name: str) -> None:
        """Nobody speaks for it any more."""
        self._hosts[name].agent = ""

    def heard(self, agent: str) -> None:
        """An agent has sent a heartbeat."""
        host = self.of(agent)
        if host is not None:
            host.silent_ticks = 0

    def tick(self) -> list[Host]:
        """The time of another heartbeat has passed. Gives the hosts that were silent for too long."""
        silent = []
        for host in self._hosts.values():
            if host.agent:
                host.silent_ticks += 1
                if host.silent_ticks >= self._silence_ticks:
                    silent.append(host)
        return silent
