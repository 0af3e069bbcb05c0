"""`actorlm up`: find the model, plan the tree, check what can be checked before anything starts, then supervise.

What can be wrong with options, model, port and memory is found here, in seconds, in the supervisor's process.
"""

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import msgspec

from actorlm.actors.ending import INTERRUPTED_STATUS
from actorlm.actors.supervisor import Supervisor
from actorlm.api.keys import WatchedKeys
from actorlm.api.tls import Tls
from actorlm.checkpoint.description import ModelDescription
from actorlm.config import Config, HttpConfig
from actorlm.errors import ConfigError
from actorlm.instance import Instance
from actorlm.launch import MAILBOX_CAPACITY, Specification
from actorlm.messages.catalog import INBOXES, protocol
from actorlm.planning import check_security, child_environment, find_model, kernels, plan_tree
from actorlm.policies import supervision
from actorlm.recording.begin import check_directory
from actorlm.runtime.child import SUPERVISORS_SIGNALS, ChildProcess, SupervisedProcess
from actorlm.runtime.curve import Security
from actorlm.runtime.identity import this_process
from actorlm.runtime.launched import LaunchedProcess
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.pulse import Pulse
from actorlm.runtime.zeromq import ZeroMQNetwork
from actorlm.screen import Screen, screen_for
from actorlm.topology import PlannedProcess, Role, Topology

BACKLOG = 2048

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


def run_tree(config: Config, launched: Callable[[], Mapping[int, LaunchedProcess]] = dict) -> int:
    """Runs a whole tree in the foreground; returns the exit status. Raises ActorlmError for what never started.

    `launched` waits for the processes that a launcher has started, and returns them by their rank.
    """
    screen = screen_for(config.observability.log_format)
    check_files(config.http)
    listener = listen(config)
    try:
        if config.observability.record_dir is not None:
            check_directory(config.observability.record_dir)
        model = find_model(config, screen.bar)
        screen.line(f"{'kernels':>14}  {kernels(config)}")
        signal.pthread_sigmask(signal.SIG_BLOCK, SUPERVISORS_SIGNALS)  # until the directory is sure to go
        instance = Instance.create()
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SUPERVISORS_SIGNALS)
            topology = plan_tree(config, model, str(instance.directory))
            _warn_of_short_cache(topology, model, screen)
            if warning := check_security(config.security, topology):
                screen.line(warning)
            with _placed(config, topology) as start_worker:
                spawn = _spawner(config, model, topology, listener, launched(), start_worker)
                return _supervise(config, model, topology, listener, screen, spawn)
        finally:
            instance.close()
    finally:
        screen.close()
        listener.close()


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


def _warn_of_short_cache(topology: Topology, model: ModelDescription, screen: Screen) -> None:
    longest = topology.kv_cache_tokens + 1  # the last token of a sequence is never stored
    if longest < model.max_model_len:
        screen.line(
            f"warning: a KV cache of {topology.kv_cache_tokens:,} tokens ends every sequence at {longest:,}"
            f" of the model's {model.max_model_len:,} tokens (--kv-cache-tokens, --max-model-len)",
            "warning",
        )


def check_files(http: HttpConfig) -> None:
    """Reads what frontends will read. Raises ConfigError for what they could not use."""
    WatchedKeys(http.api_key, http.api_keys_file, "api_key")
    Tls.of(http)


def listen(config: Config) -> socket.socket:
    """The HTTP socket, held by the supervisor so that frontends share it and a restart refuses nobody."""
    host, port = config.http.host, config.http.port
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {url(config.http, port)}: {error.strerror or error}; choose another --host or --port"
        ) from None
    sock.setblocking(False)
    return sock


def url(http: HttpConfig, port: int) -> str:
    """The service's address as a URL."""
    scheme = "http" if http.tls_certificate is None else "https"
    return f"{scheme}://[{http.host}]:{port}" if ":" in http.host else f"{scheme}://{http.host}:{port}"


def _supervise(
    config: Config, model: ModelDescription, topology: Topology, listener: socket.socket, screen: Screen, spawn: Spawn
) -> int:
    import uvloop  # noqa: PLC0415 - `plan` and `--help` do without

    signal.pthread_sigmask(signal.SIG_BLOCK, SUPERVISORS_SIGNALS)  # an exception in the loop's own code would break it
    supervisor: Supervisor = uvloop.run(_run(config, model, topology, listener, screen, spawn))
    for number in SUPERVISORS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # there is nothing left that it could stop
    if supervisor.cause:
        screen.line(f"actorlm: {supervisor.cause.splitlines()[0]}", "error")
    return supervisor.status


async def _run(
    config: Config, model: ModelDescription, topology: Topology, listener: socket.socket, screen: Screen, spawn: Spawn
) -> Supervisor:
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
    address = url(config.http, listener.getsockname()[1])
    pulse = Pulse(config.supervision.heartbeat_timeout_s)
    supervisor = Supervisor(
        mailbox,
        server=server,
        tallies=network.tallies,
        supervision=supervision(config, topology, pulse, identity.host),
        pulse=pulse,
        spawn=spawn,
        screen=screen,
        model=model.name,
        url=address,
        ready_text=_ready_text(config, model, topology, address),
        drain_timeout_s=config.supervision.drain_timeout_s,
    )
    try:
        await supervisor.supervise()
    finally:
        await network.close()
    return supervisor


def _ready_text(config: Config, model: ModelDescription, topology: Topology, address: str) -> str:
    replicas = f" in each of {config.parallel.data} replicas" if config.parallel.data > 1 else ""
    return f"{address} serves {model.name}, KV cache of {topology.kv_cache_tokens:,} tokens{replicas}"


def _spawner(
    config: Config,
    model: ModelDescription,
    topology: Topology,
    listener: socket.socket,
    launched: Mapping[int, LaunchedProcess],
    start_worker: StartWorker | None,
) -> Spawn:
    processes = {process.name: process for process in topology.processes}
    environment = child_environment(topology, os.environ)
    keyless = msgspec.structs.replace(config, http=msgspec.structs.replace(config.http, api_key=None))
    variables = {name: environment[name] for name in child_environment(topology, {})}

    def spawn(name: str, incarnation: int) -> SupervisedProcess:
        process = processes[name]
        sockets = [listener] if process.role == Role.FRONTEND else []
        specification = Specification(
            process=process,
            incarnation=incarnation,
            topology=topology,
            config=config if process.role == Role.FRONTEND else keyless,
            model=model,
            listener=listener.fileno() if sockets else None,
        )
        text = msgspec.json.encode(specification)
        if process.launched_rank:
            return launched[process.launched_rank].begin(text)
        if start_worker is not None and process.role == Role.WORKER:
            return start_worker(process, text, variables)
        return ChildProcess.spawn(["actorlm.process", name], text, environment, sockets)

    return spawn
