"""`actorlm up FILE --on HOST` on a host that does not lead: runs its part of the tree for as long as there is a lead.

The same is checked first as on the lead. Then lives of a HostAgent follow each other: each joins the lead, and ends
when that is out of reach. Without a lead for the start timeout the command ends, with a non-zero status.
"""

import asyncio
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from actorlm.actors.ending import FORCED_STATUS, INTERRUPTED_STATUS
from actorlm.actors.host_agent import HostAgent, Outcome, Spawn
from actorlm.agreement import facts
from actorlm.config import Config
from actorlm.errors import PeerMissing
from actorlm.launch import MAILBOX_CAPACITY
from actorlm.messages.catalog import INBOXES, protocol
from actorlm.messages.supervisor import HostArrived
from actorlm.planning import plan_tree
from actorlm.policies import HOST_SLACK_TICKS
from actorlm.runtime.child import SUPERVISORS_SIGNALS
from actorlm.runtime.curve import Security
from actorlm.runtime.identity import this_process
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.pulse import Pulse
from actorlm.runtime.zeromq import ZeroMQNetwork
from actorlm.start import Start, started
from actorlm.tcp_keys import check_security
from actorlm.topology import Role, Topology
from actorlm.up import check_addresses, reach_of_supervisor, spawner, what_to_run

REMIND_S = 10.0


class _Host(NamedTuple):
    """All that an agent is made of."""

    name: str
    start: Start
    file: str
    topology: Topology

    def spawner(self, kv_cache_tokens: int, clock: Callable[[], int]) -> Spawn:
        """What starts processes here, for the KV cache that the lead has planned and by its clock."""
        topology = msgspec.structs.replace(self.topology, kv_cache_tokens=kv_cache_tokens)
        return spawner(self.start.config, self.start.model, topology, self.start.listener, {}, None, clock)

    def arrival(self) -> HostArrived:
        """What the lead is told."""
        who = f"pid {os.getpid()} on {socket.gethostname()} ({self.start.config.hosts[self.name].address})"
        return HostArrived(self.name, who, facts(self.start.written, self.start.model), self.topology.kv_cache_tokens)


def run_host(config: Config, name: str, file: str) -> int:
    """Runs one host's part of a tree in the foreground; returns the exit status.

    Raises ActorlmError for what never started, if the lead refuses this host, and if there is no lead.
    """
    with started(config, name) as start:
        config = start.config
        topology = plan_tree(config, start.model, str(start.instance.directory), name)
        check_addresses(config, topology, name)
        if warning := check_security(config.security, topology, name):
            start.screen.line(warning, "warning")
        start.instance.publish(reach_of_supervisor(config, topology))
        return _serve(_Host(name, start, file, topology))


def _serve(host: _Host) -> int:
    import uvloop  # noqa: PLC0415 - `plan` and `--help` do without

    status: int = uvloop.run(_Lives(host).run())
    return status


class _Lives:
    """One agent after the other."""

    def __init__(self, host: _Host) -> None:
        self._host = host
        self._agent: HostAgent | None = None
        self._signalled = 0
        self._lead_seen_at = time.monotonic()
        self._patience_s = host.start.config.supervision.start_timeout_s
        lead = host.topology.lead
        self._lead = f"host {lead}, {what_to_run(host.start.written, host.file, lead)}"

    async def run(self) -> int:
        """The exit status, once the host has been told to end. Raises PeerMissing if there is no lead."""
        loop = asyncio.get_running_loop()
        for number in SUPERVISORS_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SUPERVISORS_SIGNALS)
        reminding = loop.create_task(self._remind())
        try:
            while not self._signalled:
                outcome = await self._live()
                if outcome is Outcome.MISSING:
                    raise PeerMissing(f"no lead within {self._patience_s:g} s (--start-timeout-s): {self._lead}")
        finally:
            reminding.cancel()
        if self._signalled == signal.SIGINT:
            return INTERRUPTED_STATUS
        return FORCED_STATUS if outcome is Outcome.FORCED else 0

    async def _live(self) -> Outcome:
        """One life."""
        host, config = self._host, self._host.start.config
        name = f"{Role.HOST}-{host.name}-{secrets.token_hex(4)}"
        mailbox: Mailbox[Any] = Mailbox(name, MAILBOX_CAPACITY, Overflow.PAUSE)
        security = Security.of(config.security.keys, Role.HOST, insecure=config.security.insecure)
        network = ZeroMQNetwork(protocol(), high_water=MAILBOX_CAPACITY, security=security)
        link = network.connect(
            host.topology.address(Role.SUPERVISOR),
            peer=Role.SUPERVISOR,
            identity=this_process(Role.HOST, name),
            mailbox=mailbox,
            inbox=INBOXES[Role.HOST],
        )
        pulse = Pulse(config.supervision.heartbeat_timeout_s)
        self._agent = agent = HostAgent(
            name,
            mailbox,
            link=link,
            arrival=host.arrival(),
            spawner=host.spawner,
            pulse=pulse,
            silence_beats=pulse.beats + HOST_SLACK_TICKS,
            say=host.start.screen.line,
            drain_timeout_s=config.supervision.drain_timeout_s,
            patience_s=self._lead_seen_at + self._patience_s - time.monotonic(),
        )
        try:
            await agent.serve()
        finally:
            await network.close()
        if agent.is_admitted:
            self._lead_seen_at = time.monotonic()
        return agent.outcome

    def _on_signal(self, number: int) -> None:
        self._signalled = self._signalled or number
        if self._agent is None:
            return
        if number == signal.SIGINT:
            self._agent.interrupt()
        else:
            self._agent.leave()

    async def _remind(self) -> None:
        """Names the lead while it is missing, and what to run there, again and again."""
        while True:
            await asyncio.sleep(REMIND_S)
            if self._agent is not None and not self._agent.is_admitted:
                self._host.start.screen.line(f"waiting for the lead, {self._lead}")
