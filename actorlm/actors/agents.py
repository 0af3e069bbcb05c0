"""The other hosts, seen from the supervisor that leads: who speaks for each, and the processes there.

Owns: the sessions with host agents, and what is known of their processes. Decisions are `runtime.hosts`'s. Whoever
speaks for a host is refused unless it would plan the same tree.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol, assert_never

from actorlm.actors.remote import RemoteProcess
from actorlm.messages.host import HostAdmitted, HostRefused, HostReleased, StartProcess, StillLeading
from actorlm.messages.supervisor import FromHosts, HostArrived, HostLeaving, ProcessEnded, ProcessStarted
from actorlm.runtime.errors import PeerFull, PeerUnknown
from actorlm.runtime.hosts import Host, Hosts
from actorlm.runtime.network import Server
from actorlm.wire import Message

REMIND_S = 10.0


class Watcher(Protocol):
    """Who is told of hosts that come and go."""

    def host_came(self, host: str) -> None:
        """Its processes can be started."""

    def host_leaves(self, host: str) -> None:
        """It has been told to end: `Agents.release` is to be called when that costs nobody much."""

    def host_lost(self, host: str, why: str, *, ordered: bool) -> None:
        """Its processes are about to be reported as ended."""


class Agents:
    """The agents that have joined `server`, and the processes that they have started.

    `difference` compares what an agent says of its host with the lead's own, and says what differs; `run_there` is what
    to run on a host. Lives of processes begin by `clock`, in nanoseconds, wherever they are.
    """

    def __init__(
        self,
        server: Server,
        hosts: Hosts,
        *,
        kv_cache_tokens: int,
        clock: Callable[[], int],
        difference: Callable[[HostArrived], str],
        run_there: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self._server = server
        self._hosts = hosts
        self._kv_cache_tokens = kv_cache_tokens
        self._clock = clock
        self._difference = difference
        self._run_there = run_there
        self._say = say
        self._joined: set[str] = set()
        self._refused: set[tuple[str, str]] = set()
        """Who has been refused why since a host was lost: each is said once."""
        self._processes: dict[str, dict[str, RemoteProcess]] = {}
        self._watcher: Watcher | None = None

    def __contains__(self, peer: object) -> bool:
        return peer in self._joined

    @property
    def missing(self) -> list[str]:
        """The hosts that are not here."""
        return [host.name for host in self._hosts.missing]

    def watch(self, watcher: Watcher) -> None:
        """From now on `watcher` is told of hosts."""
        self._watcher = watcher

    @property
    def _tell(self) -> Watcher:
        assert self._watcher is not None, "the supervisor watches"
        return self._watcher

    def spawn(self, host: str, name: str, incarnation: int) -> RemoteProcess:
        """Has a process started on a host that is here."""
        agent = self._hosts[host].agent
        process = RemoteProcess(name, incarnation, lambda message: self._order(agent, message))
        if not agent:  # lost since its process was due
            process.ended(_unreachable(host))
            return process
        self._processes.setdefault(agent, {})[name] = process
        self._order(agent, StartProcess(name, incarnation))
        return process

    def joined(self, peer: str) -> None:
        """An agent has a session. One that had another one before begins again."""
        if peer in self._joined and (host := self._hosts.of(peer)):
            self._lose(host, "its agent's session was lost")
        self._joined.add(peer)

    def receive(self, peer: str, message: FromHosts) -> None:
        """What agents say."""
        match message:
            case HostArrived():
                self._arrived(peer, message)
            case HostLeaving():
                self._leaving(peer)
            case ProcessStarted():
                self._started(peer, message)
            case ProcessEnded():
                self._ended(peer, message)
            case _:
                assert_never(message)

    def _arrived(self, peer: str, message: HostArrived) -> None:
        """An agent wants to speak for a host."""
        final = self._reason_to_refuse(message)
        reason = final or self._hosts.claimed(message.host, message.who)
        if reason:
            self._refuse(peer, message, reason, final=bool(final))
            return
        self._hosts.came(message.host, peer, message.who)
        self._order(peer, HostAdmitted(self._kv_cache_tokens, self._clock()))
        if self._hosts.of(peer):  # it may be gone already
            self._tell.host_came(message.host)

    def _reason_to_refuse(self, message: HostArrived) -> str:
        if message.host not in self._hosts:
            return f"host {message.host} is none of those that the lead waits for"
        if difference := self._difference(message):
            return f"host {message.host} does not fit: {difference}"
        if message.kv_cache_tokens < self._kv_cache_tokens:
            return (
                f"host {message.host} does not fit: it has room for a KV cache of {message.kv_cache_tokens} tokens in"
                f" each replica, the lead has planned {self._kv_cache_tokens}; set --kv-cache-tokens"
            )
        return ""

    def _refuse(self, peer: str, message: HostArrived, reason: str, *, final: bool) -> None:
        if (message.who, reason) not in self._refused:
            self._refused.add((message.who, reason))
            self._say(f"refused {message.who}: {reason}")
        if message.host in self._hosts:
            self._hosts[message.host].refused = reason
        self._order(peer, HostRefused(reason, final))
        if final:
            self._forget(peer)

    def _started(self, peer: str, message: ProcessStarted) -> None:
        """A process exists."""
        process = self._find(peer, message.name, message.incarnation)
        if process is not None:
            process.pid = message.pid

    def _ended(self, peer: str, message: ProcessEnded) -> None:
        """A process has ended."""
        process = self._find(peer, message.name, message.incarnation)
        if process is not None:
            del self._processes[peer][message.name]
            process.ended(message.how)

    def _leaving(self, peer: str) -> None:
        """An agent has been told to end."""
        if host := self._hosts.of(peer):
            self._tell.host_leaves(host.name)

    def release(self, host: str) -> None:
        """Nothing on this host is needed any more, if it is still here."""
        if agent := self._hosts[host].agent:
            self._order(agent, HostReleased())
            self._lose(self._hosts[host], "it was told to leave", ordered=True)

    def heard(self, peer: str) -> None:
        """An agent has sent a heartbeat."""
        self._hosts.heard(peer)

    def tick(self) -> None:
        """The time of another heartbeat has passed: tells agents that the lead is here, and gives up who is silent."""
        for host in self._hosts.tick():
            self._lose(host, "it is unreachable")
        for agent in self._hosts.agents:
            self._order(agent, StillLeading())

    async def remind(self) -> None:
        """Names the hosts that are not here, and what to run there, again and again."""
        while True:
            for host in self._hosts.missing:
                refused = f"; refused: {host.refused}" if host.refused else ""
                self._say(f"waiting for host {host.name}: run {self._run_there[host.name]}{refused}")
            await asyncio.sleep(REMIND_S)

    def _order(self, agent: str, message: Message) -> None:
        """Sends to an agent. One whose connection is gone is lost: it ends its processes, and joins anew."""
        try:
            self._server.send(agent, message)
        except PeerUnknown:
            self._lose_agent(agent, "its agent is gone")
        except PeerFull:
            self._lose_agent(agent, "its agent does not read")

    def _lose_agent(self, agent: str, why: str) -> None:
        if host := self._hosts.of(agent):
            self._lose(host, why)
        self._forget(agent)

    def _lose(self, host: Host, why: str, *, ordered: bool = False) -> None:
        agent = host.agent
        if not agent:
            return
        self._refused.clear()
        self._hosts.lost(host.name)
        processes = self._processes.pop(agent, {})
        self._forget(agent)
        self._tell.host_lost(host.name, why, ordered=ordered)
        for process in processes.values():
            process.ended(_unreachable(host.name))

    def _forget(self, agent: str) -> None:
        self._joined.discard(agent)
        self._server.forget(agent)

    def _find(self, peer: str, name: str, incarnation: int) -> RemoteProcess | None:
        process = self._processes.get(peer, {}).get(name)
        return process if process is not None and process.incarnation == incarnation else None


def _unreachable(host: str) -> str:
    return f"host {host} is unreachable"
