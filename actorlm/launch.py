"""The wiring: from the specification of one process to its running actor.

The one file that knows which class plays which role, and who connects to whom. Imports of a role's own parts wait until
that role is built, because a process pays for what it imports: only workers import torch, only frontends Litestar.
"""
# ruff: noqa: PLC0415 - see above

import asyncio
import platform
import socket
from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import uvloop

from actorlm import __version__
from actorlm.actors.membership import Membership
from actorlm.checkpoint.description import ModelDescription
from actorlm.config import BLOCK_SIZE, Config
from actorlm.log import configure_logging
from actorlm.messages.catalog import from_peers, protocol
from actorlm.metrics import Metrics
from actorlm.runtime.actor import Actor
from actorlm.runtime.child import leave_with_supervisor
from actorlm.runtime.curve import Security
from actorlm.runtime.identity import Identity, this_process
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.network import Link
from actorlm.runtime.pulse import Pulse
from actorlm.runtime.zeromq import ZeroMQNetwork
from actorlm.topology import PlannedProcess, Role, Topology

MAILBOX_CAPACITY = 65_536


class Specification(msgspec.Struct, frozen=True, kw_only=True):
    """All that a child process is told by its supervisor.

    `incarnation` counts the starts of the actor, `began_ns` orders its lives among those of all supervisors. `listener`
    is the descriptor of a frontend's HTTP socket.
    """

    process: PlannedProcess
    incarnation: int
    began_ns: int
    topology: Topology
    config: Config
    model: ModelDescription
    listener: int | None = None


def run_child(specification: bytes) -> None:
    """Runs the actor of one specification until it is told to stop. Raises what ended it."""
    spec = msgspec.json.decode(specification, type=Specification)
    config = spec.config
    configure_logging(config.supervision.log_level, spec.process.name, config.observability.log_format)
    uvloop.run(_Child(spec).run())


class _Child:
    """The parts that every child has: identity, mailbox, network, and its tie to the supervisor."""

    def __init__(self, spec: Specification) -> None:
        self.spec = spec
        self.name = spec.process.name

    async def run(self) -> None:
        """Builds the actor and runs it."""
        asyncio.get_running_loop().add_reader(0, leave_with_supervisor)
        self.identity: Identity = this_process(self.spec.process.role, self.name, self.spec.began_ns)
        config = self.spec.config.security
        self.security = Security.of(config.keys, self.spec.process.role, insecure=config.insecure)
        self.network = ZeroMQNetwork(protocol(), high_water=MAILBOX_CAPACITY, security=self.security)
        self.mailbox: Mailbox[Any] = Mailbox(self.name, MAILBOX_CAPACITY, Overflow.PAUSE)
        actor, finish = BUILDERS[self.spec.process.role](self)
        try:
            await actor.run()
        finally:
            await finish()
            await self.network.close()

    def link(self, peer: str, inbox: Any, socket_name: str = "") -> Link:
        """A link to another actor of the tree."""
        address = self.spec.topology.address(socket_name or peer)
        return self.network.connect(address, peer=peer, identity=self.identity, mailbox=self.mailbox, inbox=inbox)

    def membership(self, inbox: Any = None) -> Membership:
        """The tie to the supervisor. `inbox` is what it may say, unless that is all of the role's."""
        pulse = Pulse(self.spec.config.supervision.heartbeat_timeout_s)
        return Membership(self.link(Role.SUPERVISOR, inbox or self.inbox), Metrics(), self.network, pulse)

    def detokenizers(self) -> dict[int, Link]:
        """A link to every detokenizer that this actor uses, by index."""
        used = [
            one
            for one in self.spec.topology.of_role(Role.DETOKENIZER)
            if any(fnmatchcase(one.name, pattern) for pattern in self.spec.process.connects)
        ]
        return {process.index: self.link(process.name, self.inbox) for process in used}

    @property
    def inbox(self) -> Any:
        """The union of messages that this role receives."""
        from actorlm.messages.catalog import INBOXES

        return INBOXES[self.spec.process.role]


Built = tuple[Actor[Any], Callable[[], Awaitable[None]]]


async def _nothing() -> None:
    """Nothing is left to do after this actor has ended."""


def _build_balancer(child: _Child) -> Built:
    from actorlm.actors.balancer import Balancer
    from actorlm.scheduling.balance import Room

    server = child.network.serve(
        child.spec.topology.address("balancer"),
        identity=child.identity,
        mailbox=child.mailbox,
        inbox=from_peers(child.spec.process.role),
        admits=(Role.FRONTEND, Role.ENGINE),
    )
    config, membership = child.spec.config, child.membership()
    membership.metrics.set("build_info", 1, (__version__, platform.python_version()))
    has_a_choice, scheduler = config.parallel.data > 1, config.scheduler
    balancer = Balancer(
        child.name,
        child.mailbox,
        server,
        membership,
        max_imbalance=config.balancing.max_imbalance,
        prefix_affinity=has_a_choice and config.balancing.prefix_affinity and config.cache.prefix_caching,
        room=Room(scheduler.max_waiting + scheduler.max_running, scheduler.max_waiting_tokens),
    )
    return balancer, _nothing


def _build_detokenizer(child: _Child) -> Built:
    from actorlm.actors.detokenizer import Detokenizer
    from actorlm.text.tokenizer import load_tokenizer

    topology = child.spec.topology
    server = child.network.serve(
        topology.address(child.name),
        identity=child.identity,
        mailbox=child.mailbox,
        inbox=from_peers(child.spec.process.role),
        admits=(Role.FRONTEND, Role.ENGINE),
        one_way={"tokens": topology.address(f"{child.name}-tokens")},
    )
    tokenizer = load_tokenizer(child.spec.model)
    return Detokenizer(child.name, child.mailbox, server, child.membership(), tokenizer), _nothing


def _build_frontend(child: _Child) -> Built:
    from actorlm.actors.backend import ServingBackend
    from actorlm.actors.clients import Clients
    from actorlm.actors.frontend import Frontend
    from actorlm.actors.operations import SupervisorOperations
    from actorlm.actors.spans import Spans
    from actorlm.api.app import create_app
    from actorlm.api.direct import DirectRequests
    from actorlm.api.probe import Probe
    from actorlm.api.server import HttpServer, allow_connections
    from actorlm.api.tls import Tls
    from actorlm.messages.frontend import FromClients
    from actorlm.text.chat_template import load_chat_template
    from actorlm.text.tokenizer import load_tokenizer
    from actorlm.tracing import Traces

    spec, membership = child.spec, child.membership()
    assert spec.listener is not None, "frontends are given a listening socket"
    observed = spec.config.observability
    traces = Traces(observed, child.name) if observed.otlp_endpoint else None
    frontend = Frontend(
        child.name,
        child.mailbox,
        index=spec.process.index,
        incarnation=spec.incarnation,
        served_name=spec.model.name,
        balancer=child.link("balancer", child.inbox),
        detokenizers=child.detokenizers(),
        membership=membership,
        spans=Spans(traces, spec.model.name) if traces else None,
        request_timeout_s=spec.config.timeouts.request_timeout_s,
    )
    tokenizer, template = load_tokenizer(spec.model), load_chat_template(spec.model)
    max_choices, replicas = spec.config.http.max_choices, spec.config.parallel.data
    backend = ServingBackend(frontend, spec.model, tokenizer, template, max_choices, replicas)
    supervisor, keys = spec.topology.address(Role.SUPERVISOR), spec.config.security
    operations = SupervisorOperations(
        supervisor,
        lambda: ZeroMQNetwork(protocol(), security=Security.of(keys.keys, Role.OPERATOR, insecure=keys.insecure)),
    )
    app = create_app(backend, spec.config.http, operations, log_requests=observed.log_requests, traces=traces)
    http, tls = spec.config.http, Tls.of(spec.config.http)
    allow_connections(http.max_connections)
    server = HttpServer(app, socket.socket(fileno=spec.listener), tls, http.max_connections)
    membership.oblige(Probe(server).duty)
    endpoint = child.network.serve(
        spec.topology.address(child.name),
        identity=child.identity,
        mailbox=child.mailbox,
        inbox=FromClients,
        admits=(Role.CLIENT,),
    )
    frontend.admit(Clients(endpoint, DirectRequests(backend), model=spec.model.name, spawn=frontend.spawn))

    async def serve() -> None:
        await server.start()
        frontend.serve(server.stop)

    async def finish() -> None:
        if traces is not None:
            await asyncio.to_thread(traces.flush)

    frontend.spawn(serve())
    frontend.spawn(app.watch())
    if tls is not None:
        frontend.spawn(tls.watch())
    return frontend, finish


def _build_engine(child: _Child) -> Built:
    from actorlm.actors.engine import EngineCore
    from actorlm.messages.balancer import ReplicaAnnounced
    from actorlm.recording.begin import begin
    from actorlm.scheduling.scheduler import Scheduler

    spec = child.spec
    executor, membership, caching = _executor(child), child.membership(), spec.config.cache.prefix_caching
    described = (str(spec.process.index), str(BLOCK_SIZE), str(_num_blocks(spec)), str(caching))
    membership.metrics.set("cache_config_info", 1, described)
    recorder = begin(
        spec.config,
        actor=child.name,
        pid=child.identity.pid,
        kv_cache_tokens=spec.topology.kv_cache_tokens,
        max_model_len=spec.model.max_model_len,
        vocab_size=spec.model.vocab_size,
        eos_token_ids=spec.model.eos_token_ids,
    )
    engine = EngineCore(
        child.name,
        child.mailbox,
        replica=spec.process.index,
        scheduler=Scheduler(
            spec.config.scheduler,
            num_blocks=_num_blocks(spec),
            max_model_len=spec.model.max_model_len,
            eos_token_ids=spec.model.eos_token_ids,
            prefix_caching=caching,
            lanes=spec.config.parallel.pipeline,
        ),
        vocab_size=spec.model.vocab_size,
        executor=executor,
        balancer=child.link("balancer", child.inbox),
        detokenizers=child.detokenizers(),
        membership=membership,
        announcement=ReplicaAnnounced(
            spec.process.index, spec.topology.kv_cache_tokens, spec.config.scheduler.max_num_seqs
        ),
        witnesses=[recorder] if recorder else (),
        queue_timeout_s=spec.config.timeouts.queue_timeout_s,
    )

    async def finish() -> None:
        if recorder is not None:
            recorder.close()
        await executor.stop()

    return engine, finish


def _executor(child: _Child) -> Any:
    from actorlm.executors.ranks import Ranks

    spec = child.spec
    supervision = spec.config.supervision
    workers = [worker.name for worker in spec.topology.of_role(Role.WORKER) if worker.index == spec.process.index]
    ranks = Ranks(
        workers or [child.name],
        step_timeout_s=supervision.step_timeout_s,
        tick_s=Pulse(supervision.heartbeat_timeout_s).beat_s,
    )
    if spec.topology.executor == "inline":
        from actorlm.executors.inline import InlineExecutor

        return InlineExecutor(lambda: _build_tensor_worker(spec), ranks)
    from actorlm.executors.sockets import lead

    sockets = spec.topology.replica_sockets(spec.process.index)
    executor, publisher = lead(child.network, sockets, child.identity, ranks, spec.incarnation, child.security)
    child.network.count(publisher.tally)
    child.network.count(executor.tally)
    return executor


def _build_worker(child: _Child) -> Built:
    from actorlm.actors.worker import WorkerActor
    from actorlm.executors.sockets import follow, subscriber
    from actorlm.messages.actor import Control

    spec = child.spec
    assert spec.process.place is not None, "workers have a place"
    sockets = spec.topology.replica_sockets(spec.process.index)
    worker = WorkerActor(
        child.name,
        child.mailbox,
        rank=spec.process.place.rank,
        build=lambda: _build_tensor_worker(spec),
        engine=follow(child.network, sockets, child.identity, child.mailbox),
        subscribe=lambda link: subscriber(sockets, link, spec.incarnation, child.security),
        membership=child.membership(Control),
    )
    return worker, _nothing


def _build_tensor_worker(spec: Specification) -> Any:
    from actorlm.execution.worker import PATIENCE_S, build_worker, meet_at

    process, topology = spec.process, spec.topology
    assert process.place is not None, "tensors are computed in a place"
    meeting = topology.meeting(process.group, spec.incarnation)
    own = spec.config.hosts[process.host].address if process.host else None
    # the step timeout knows more, so it comes first
    patience_s = max(PATIENCE_S, 2 * spec.config.supervision.step_timeout_s)
    return build_worker(
        spec.config,
        spec.model,
        place=process.place,
        meet=meet_at(meeting, process.place, patience_s, occasion=f"{process.group}-{spec.incarnation}", own=own)
        if process.place.world_size > 1
        else None,
        num_blocks=_num_blocks(spec),
        threads=topology.threads,
    )


def _num_blocks(spec: Specification) -> int:
    return spec.topology.kv_cache_tokens // BLOCK_SIZE


BUILDERS: dict[Role, Callable[[_Child], Built]] = {
    Role.BALANCER: _build_balancer,
    Role.DETOKENIZER: _build_detokenizer,
    Role.FRONTEND: _build_frontend,
    Role.ENGINE: _build_engine,
    Role.WORKER: _build_worker,
}
