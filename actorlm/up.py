"""`actorlm up` on the host that leads: plans the tree, checks what can be checked before it starts, then supervises."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from actorlm.actors.agents import Agents
from actorlm.actors.ending import INTERRUPTED_STATUS
from actorlm.actors.supervisor import Supervisor
from actorlm.agreement import difference, facts
from actorlm.checkpoint.description import ModelDescription
from actorlm.config import SECRET_VARIABLES, Config
from actorlm.errors import ConfigError
from actorlm.instance import Reach
from actorlm.launch import MAILBOX_CAPACITY, Specification
from actorlm.messages.catalog import INBOXES, protocol
from actorlm.planning import child_environment, plan_tree
from actorlm.policies import HOST_SLACK_TICKS, spare_frontends, supervision
from actorlm.reach import check_free, check_own
from actorlm.runtime.child import SUPERVISORS_SIGNALS, ChildProcess, SupervisedProcess
from actorlm.runtime.curve import Security
from actorlm.runtime.hosts import Hosts
from actorlm.runtime.identity import steady_clock, this_process
from actorlm.runtime.launched import LaunchedProcess
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.network import Server
from actorlm.runtime.pulse import Pulse
from actorlm.runtime.zeromq import ZeroMQNetwork
from actorlm.screen import Screen
from actorlm.start import Start, started, url
from actorlm.tcp_keys import check_security
from actorlm.topology import PlannedProcess, Role, Topology, crossings

Spawn = Callable[[str, int], SupervisedProcess]
"""Starts an actor's process by its name and incarnation."""

StartWorker = Callable[[PlannedProcess, bytes, Mapping[str, str]], SupervisedProcess]
"""Starts a worker's process somewhere, from its specification and what its environment must have."""


def leave_on_signals() -> None:
    """Until there is a supervisor, a signal that asks for an end raises SystemExit with its status."""

    def leave(number: int, _frame: object) -> NoReturn:
        raise SystemExit(INTERRUPTED_STATUS if number == signal.SIGINT else 0)

    for number in SUPERVISORS_SIGNALS:
        signal.signal(number, leave)


def run_tree(
    config: Config, launched: Callable[[], Mapping[int, LaunchedProcess]] = dict, file: str = "deployment.toml"
) -> int:
    """Runs a whole tree in the foreground; returns the exit status. Raises ActorlmError for what never started.

    `launched` waits for the processes that a launcher has started, and returns them by their rank. Processes of hosts
    other than the lead are started there; `file` is the name by which that is asked for.
    """
    with started(config, config.lead) as start:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SUPERVISORS_SIGNALS)
        config, model, screen = start.config, start.model, start.screen
        topology = plan_tree(config, model, str(start.instance.directory), config.lead)
        check_addresses(config, topology, config.lead)
        start.instance.publish(reach_of_supervisor(config, topology))
        _warn(topology, model, screen)
        if warning := check_security(config.security, topology, config.lead):
            screen.line(warning, "warning")
        with _placed(config, topology) as start_worker:
            clock = steady_clock(time.time_ns())
            spawn = spawner(config, model, topology, start.listener, launched(), start_worker, clock)
            return _supervise(_Tree(start, file, topology, spawn, clock))


def check_addresses(config: Config, topology: Topology, on: str) -> None:
    """Raises ConfigError for a TCP address that this machine, the host `on`, cannot bind."""
    if on:
        check_own(config, on)
    check_free(topology.bound_on(on), config.http.port if config.has_http(on) else 0)


def _placed(config: Config, topology: Topology) -> contextlib.AbstractContextManager[StartWorker | None]:
    """How workers start, unless it is as the others."""
    if topology.executor != "ray":
        return contextlib.nullcontext()
    try:
        from actorlm.executors.ray import placed  # noqa: PLC0415 - an extra, and slow to import
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("--executor ray needs Ray, which is not installed: pip install 'actorlm[ray]'") from None
    return placed(topology, config.parallel.ray_address, config.supervision.start_timeout_s)


def _warn(topology: Topology, model: ModelDescription, screen: Screen) -> None:
    for crossing in crossings(topology):
        screen.line(f"warning: {crossing}", "warning")
    longest = topology.kv_cache_tokens + 1  # the last token of a sequence is never stored
    if longest < model.max_model_len:
        screen.line(
            f"warning: a KV cache of {topology.kv_cache_tokens:,} tokens ends every sequence at {longest:,}"
            f" of the model's {model.max_model_len:,} tokens (--kv-cache-tokens, --max-model-len)",
            "warning",
        )


class _Tree(NamedTuple):
    """All that a supervisor is made of."""

    start: Start
    file: str
    topology: Topology
    spawn: Spawn
    clock: Callable[[], int]

    @property
    def url(self) -> str:
        """Of the lead's frontends, or of those of the first host that has any."""
        config, listener = self.start.config, self.start.listener
        if listener is not None:
            return url(config.http, listener.getsockname()[1])
        first = self.topology.of_role(Role.FRONTEND)[0].host
        return url(config.http, config.http.port, config.hosts[first].address)


def _supervise(tree: _Tree) -> int:
    import uvloop  # noqa: PLC0415 - `plan` and `--help` do without

    signal.pthread_sigmask(signal.SIG_BLOCK, SUPERVISORS_SIGNALS)  # an exception in the loop's own code would break it
    supervisor: Supervisor = uvloop.run(_run(tree))
    for number in SUPERVISORS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # there is nothing left that it could stop
    if supervisor.cause:
        tree.start.screen.line(f"actorlm: {supervisor.cause.splitlines()[0]}", "error")
    return supervisor.status


async def _run(tree: _Tree) -> Supervisor:
    start, config, topology = tree.start, tree.start.config, tree.topology
    mailbox: Mailbox[Any] = Mailbox(Role.SUPERVISOR, MAILBOX_CAPACITY, Overflow.PAUSE)
    security = Security.of(config.security.keys, Role.SUPERVISOR, insecure=config.security.insecure)
    network = ZeroMQNetwork(protocol(), high_water=MAILBOX_CAPACITY, security=security)
    identity = this_process(Role.SUPERVISOR, Role.SUPERVISOR)
    server = network.serve(
        topology.address(Role.SUPERVISOR),
        identity=identity,
        mailbox=mailbox,
        inbox=INBOXES[Role.SUPERVISOR],
        admits=tuple(Role),
    )
    pulse = Pulse(config.supervision.heartbeat_timeout_s)
    agents = _agents(tree, server, pulse)
    hosts = {process.name: process.host for process in (*topology.processes, *topology.spares)}

    def spawn(name: str, incarnation: int) -> SupervisedProcess:
        here = hosts[name] == topology.lead
        return tree.spawn(name, incarnation) if here else agents.spawn(hosts[name], name, incarnation)

    supervisor = Supervisor(
        mailbox,
        server=server,
        tallies=network.tallies,
        supervision=supervision(config, topology, pulse, identity.host, agents.missing),
        pulse=pulse,
        spawn=spawn,
        spare=spare_frontends(topology, identity.host),
        agents=agents,
        screen=start.screen,
        model=start.model.name,
        url=tree.url,
        ready_text=_ready_text(config, start.model, topology, tree.url),
        drain_timeout_s=config.supervision.drain_timeout_s,
        drain_delay_s=config.supervision.drain_delay_s,
    )
    try:
        await supervisor.supervise()
    finally:
        await network.close()
    return supervisor


def _agents(tree: _Tree, server: Server, pulse: Pulse) -> Agents:
    start = tree.start
    others = [host for host in start.config.hosts if host != tree.topology.lead]
    ours = facts(start.written, start.model)
    return Agents(
        server,
        Hosts(others, silence_ticks=pulse.beats + HOST_SLACK_TICKS),
        kv_cache_tokens=tree.topology.kv_cache_tokens,
        clock=tree.clock,
        difference=lambda arrival: difference(ours, arrival.facts),
        run_there={host: what_to_run(start.written, tree.file, host) for host in others},
        say=start.screen.line,
    )


def reach_of_supervisor(config: Config, topology: Topology) -> Reach:
    """How operators of this machine reach the supervisor."""
    keys = config.security.keys
    return Reach(
        topology.address(Role.SUPERVISOR), str(Path(keys).absolute()) if keys is not None else None,
        config.security.insecure,
    )  # fmt: skip


def what_to_run(config: Config, file: str, host: str) -> str:
    """What starts a host's part of the tree, and where."""
    return f"`actorlm up {file} --on {host}` on {config.hosts[host].address}"


def _ready_text(config: Config, model: ModelDescription, topology: Topology, address: str) -> str:
    replicas = f" in each of {config.parallel.data} replicas" if config.parallel.data > 1 else ""
    return f"{address} serves {model.name}, KV cache of {topology.kv_cache_tokens:,} tokens{replicas}"


def spawner(
    config: Config,
    model: ModelDescription,
    topology: Topology,
    listener: socket.socket | None,
    launched: Mapping[int, LaunchedProcess],
    start_worker: StartWorker | None,
    clock: Callable[[], int],
) -> Spawn:
    """What starts the processes of this machine. Their lives begin by this clock, in nanoseconds."""
    processes = {process.name: process for process in (*topology.processes, *topology.spares)}
    inherited = {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES}
    environment = child_environment(topology, inherited)
    keyless = msgspec.structs.replace(config, http=msgspec.structs.replace(config.http, api_key=None, admin_key=None))
    variables = {name: environment[name] for name in child_environment(topology, {})}

    def spawn(name: str, incarnation: int) -> SupervisedProcess:
        process = processes[name]
        sockets = [listener] if listener is not None and process.role == Role.FRONTEND else []
        specification = Specification(
            process=process,
            incarnation=incarnation,
            began_ns=clock(),
            topology=topology,
            config=config if process.role == Role.FRONTEND else keyless,
            model=model,
            listener=sockets[0].fileno() if sockets else None,
        )
        text = msgspec.json.encode(specification)
        if process.launched_rank:
            return launched[process.launched_rank].begin(text)
        if start_worker is not None and process.role == Role.WORKER:
            return start_worker(process, text, variables)
        return ChildProcess.spawn(["actorlm.process", name], text, environment, sockets)

    return spawn
