"""The actors of one tree as data: who runs where, and which sockets it binds and connects.

Pure: options and a model's numbers in, a table out. `actorlm plan` prints it, `launch` starts it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from actorlm.config import BLOCK_SIZE, Config
from actorlm.errors import ConfigError, InsufficientMemory
from actorlm.names import engine_of
from actorlm.number_types import SIZES, type_of, vector_bytes
from actorlm.partition import Dimensions, check_tensor, kv_share, rank_parameters, stages
from actorlm.placement import Slot, place_replicas
from actorlm.wiring import tcp_sockets

NULL_KV_TOKENS = 262_144
REPLICA_SOCKETS = ("workers", "steps", "results")
MEETING = "meeting"


class Role(StrEnum):
    """What an actor does. Handshakes admit peers by role."""

    SUPERVISOR = "supervisor"
    FRONTEND = "frontend"
    BALANCER = "balancer"
    DETOKENIZER = "detokenizer"
    ENGINE = "engine"
    WORKER = "worker"
    OPERATOR = "operator"
    CLIENT = "client"
    HOST = "host"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker stands in its replica. `rank` counts the tensor ranks of the first stage, then of the next."""

    tensor_rank: int = 0
    tensor_size: int = 1
    pipeline_rank: int = 0
    pipeline_size: int = 1

    @property
    def rank(self) -> int:
        """Among all workers of the replica."""
        return self.pipeline_rank * self.tensor_size + self.tensor_rank

    @property
    def world_size(self) -> int:
        """Workers of the replica."""
        return self.tensor_size * self.pipeline_size

    @property
    def output_rank(self) -> int:
        """The one that answers a step."""
        return (self.pipeline_size - 1) * self.tensor_size

    @property
    def is_output(self) -> bool:
        """Whether this one answers a step."""
        return self.rank == self.output_rank

    @property
    def is_first_stage(self) -> bool:
        """Whether it begins with token ids."""
        return self.pipeline_rank == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether it ends with logits."""
        return self.pipeline_rank == self.pipeline_size - 1


def places(tensor: int, pipeline: int) -> list[Place]:
    """Of a replica's workers, by rank."""
    return [
        Place(tensor_rank=tensor_rank, tensor_size=tensor, pipeline_rank=stage, pipeline_size=pipeline)
        for stage in range(pipeline)
        for tensor_rank in range(tensor)
    ]


ONLY = Place()
"""The place of a replica's only worker."""


class PlannedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process and its actor.

    `index` is the frontend's or detokenizer's number, or the replica of an engine or worker; `place` is where tensors
    are computed, in a worker or in an engine that has the only one. Processes of one `group` live and die together.
    `host` is empty if there is only this machine. `launched_rank` is a worker's among all processes of a launcher's
    job; rank 0 starts its own worker. `binds` and `connects` are names of sockets.
    """

    name: str
    role: Role
    group: str
    index: int = 0
    place: Place | None = None
    device: str | None = None
    host: str = ""
    launched_rank: int | None = None
    binds: tuple[str, ...] = ()
    connects: tuple[str, ...] = ()
    memory_bytes: int = 0


class ReplicaSockets(NamedTuple):
    """Addresses that `engine` binds for its workers: to meet them, to broadcast to them, to hear their answers."""

    engine: str
    workers: str
    steps: str
    results: str


class PlannedModel(Dimensions, Protocol):
    """The numbers of a model that a plan needs."""

    @property
    def head_dim(self) -> int:
        """Features of a head."""

    @property
    def max_model_len(self) -> int:
        """Longest sequence, prompt and output."""

    @property
    def weight_bytes(self) -> int:
        """Of the checkpoint's tensors."""


class RankSize(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker holds, in bytes."""

    weights: int
    kv_per_token: int


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """The whole tree. `directory` holds its sockets; `kv_cache_tokens` is per replica, `threads` per worker.

    `lead` is the host of the supervisor; `tcp` are the addresses of those sockets that are not in the directory.
    """

    directory: str
    executor: str
    kv_cache_tokens: int
    threads: int
    processes: tuple[PlannedProcess, ...]
    lead: str = ""
    tcp: dict[str, str] = {}

    def address(self, socket: str) -> str:
        """The address of a socket by its name. Short, because ipc paths end at 107 bytes."""
        return self.tcp.get(socket) or f"ipc://{self.directory}/{socket}"

    def meeting(self, group: str, incarnation: int) -> str:
        """Where the ranks of a replica meet: a file, or a port where the first of them listens."""
        return self.tcp.get(f"{group}-{MEETING}") or f"{self.directory}/{group}-{MEETING}-{incarnation}"

    def on_host(self, host: str) -> list[PlannedProcess]:
        """All processes of one host, in order."""
        return [process for process in self.processes if process.host == host]

    def bound_on(self, host: str) -> dict[str, str]:
        """The TCP addresses that processes of one host bind, by the socket's name."""
        names = [socket for process in self.on_host(host) for socket in process.binds]
        names += [Role.SUPERVISOR] if host == self.lead else []
        return {name: self.tcp[name] for name in names if name in self.tcp}

    def replica_sockets(self, replica: int) -> ReplicaSockets:
        """Those of one replica."""
        engine = engine_of(replica)
        return ReplicaSockets(engine, *(self.address(f"{engine}-{name}") for name in REPLICA_SOCKETS))

    def of_role(self, role: Role) -> list[PlannedProcess]:
        """All processes of one role, in order."""
        return [process for process in self.processes if process.role == role]

    @property
    def spares(self) -> tuple[PlannedProcess, ...]:
        """For each frontend the one that stands in for it now and then, on the same host."""
        frontends = self.of_role(Role.FRONTEND)
        return tuple(_spare(one, len(frontends) + turn) for turn, one in enumerate(frontends))

    @property
    def memory_bytes(self) -> int:
        """Weights and KV caches of all processes."""
        return sum(process.memory_bytes for process in self.processes)


def plan(config: Config, model: PlannedModel, *, directory: str, free_bytes: int, cores: int, on: str = "") -> Topology:
    """The tree for these options, the same on all hosts but for what is measured on one.

    Memory and cores are those of the host `on`, or of each one. Raises ConfigError or InsufficientMemory, naming the
    option and the way out.
    """
    executor, ranks = _executor(config), places(config.parallel.tensor, config.parallel.pipeline)
    null = config.model.model_impl == "null"
    slots = _slots(config, len(ranks))
    sizes = [RankSize(weights=0, kv_per_token=0)] * len(ranks) if null else _rank_sizes(config, model)
    loads = _loads(slots, sizes, on)
    kv_tokens = config.cache.kv_cache_tokens
    if kv_tokens is None:
        kv_tokens = NULL_KV_TOKENS if null else _kv_tokens(config, model, loads, free_bytes)
    kv_tokens -= kv_tokens % BLOCK_SIZE
    _check_memory(config, loads, kv_tokens, free_bytes)
    memory = [size.weights + kv_tokens * size.kv_per_token for size in sizes]
    replicas = [
        process
        for replica, where in enumerate(slots)
        for process in _replica(replica, executor, null, list(zip(ranks, memory, where, strict=True)))
    ]
    processes = (*replicas, *_edge(config))
    return Topology(
        directory=directory,
        executor=executor,
        kv_cache_tokens=kv_tokens,
        threads=config.parallel.threads or max(1, cores // max(load.workers for load in loads.values())),
        processes=processes,
        lead=config.lead,
        tcp=tcp_sockets(config, [_supervisor(config), *processes]),
    )


def _supervisor(config: Config) -> PlannedProcess:
    """Where everybody connects, and the supervisors of other hosts too."""
    name = Role.SUPERVISOR
    return PlannedProcess(name=name, role=name, group=name, host=config.lead, binds=(name,))


class Load(NamedTuple):
    """What the workers of one host hold together, in bytes."""

    workers: int
    weights: int
    kv_per_token: int


def _slots(config: Config, world_size: int) -> list[list[Slot]]:
    parallel = config.parallel
    if config.hosts:
        devices = {name: host.devices for name, host in config.hosts.items()}
        return place_replicas(parallel.data, parallel.tensor, parallel.pipeline, devices)
    return [[Slot("", replica * world_size + rank) for rank in range(world_size)] for replica in range(parallel.data)]


def _loads(slots: Sequence[Sequence[Slot]], sizes: Sequence[RankSize], on: str) -> dict[str, Load]:
    """Of the host `on`, or of all hosts if it has no workers."""
    loads: dict[str, Load] = {}
    for replica in slots:
        for slot, size in zip(replica, sizes, strict=True):
            load = loads.get(slot.host, Load(0, 0, 0))
            loads[slot.host] = Load(
                load.workers + 1, load.weights + size.weights, load.kv_per_token + size.kv_per_token
            )
    return {on: loads[on]} if on in loads else loads


def _executor(config: Config) -> str:
    parallel = config.parallel
    world_size = parallel.tensor * parallel.pipeline
    if parallel.executor == "inline" and world_size > 1:
        raise ConfigError(
            f"--executor inline has one worker, --tp {parallel.tensor} --pp {parallel.pipeline} needs {world_size};"
            " choose --executor broadcast"
        )
    if parallel.ray_address is not None and parallel.executor != "ray":
        raise ConfigError(
            f"--ray-address {parallel.ray_address} is for --executor ray, not {parallel.executor}; leave it out"
        )
    if config.hosts and parallel.executor in ("ray", "external"):
        raise ConfigError(
            f"--executor {parallel.executor} has workers of one machine, and the file names hosts; choose one of them"
        )
    if parallel.executor == "auto":
        return "inline" if world_size == 1 else "broadcast"
    return parallel.executor


def bytes_per_weight(weights: str, dtype: str, model: PlannedModel) -> float:
    """Of a matrix's numbers, on average."""
    if weights == "gguf":
        return model.weight_bytes / max(model.num_parameters, 1)
    return SIZES[type_of(weights, dtype)]


def _rank_sizes(config: Config, model: PlannedModel) -> list[RankSize]:
    """Of a replica's workers, by rank. Raises ConfigError for a model that cannot be cut in this way."""
    tensor = config.parallel.tensor
    weight_size = bytes_per_weight(config.model.weights, config.model.dtype, model)
    check_tensor(model, tensor)
    layers = stages(model, config.parallel.pipeline, config.parallel.layers_of_stages)
    vector = vector_bytes(type_of(config.cache.kv_cache_dtype, config.model.dtype), model.head_dim)
    per_layer = 2 * len(kv_share(model.num_kv_heads, tensor, 0)) * vector
    parameters = rank_parameters(model, tensor, layers)
    return [
        RankSize(weights=math.ceil(count * weight_size), kv_per_token=len(part) * per_layer)
        for count, part in zip(parameters, layers, strict=True)
        for _ in range(tensor)
    ]


def _kv_tokens(config: Config, model: PlannedModel, loads: Mapping[str, Load], free_bytes: int) -> int:
    """What the KV share of the memory left by the weights holds, but no more than all requests at full length."""
    share = config.cache.kv_memory_share
    fits = min(int(max(0, free_bytes - load.weights) * share / load.kv_per_token) for load in loads.values())
    return max(BLOCK_SIZE, min(fits, config.scheduler.max_num_seqs * model.max_model_len))


def _check_memory(config: Config, loads: Mapping[str, Load], kv_tokens: int, free_bytes: int) -> None:
    for host, load in loads.items():
        needed = load.weights + kv_tokens * load.kv_per_token
        if needed > free_bytes:
            what = f"{load.workers} worker(s) on host {host}" if host else f"{config.parallel.data} replica(s)"
            parts = load.workers if host else config.parallel.data
            raise InsufficientMemory(
                f"{what} need {_gib(load.weights // parts)} GiB of weights and"
                f" {_gib(kv_tokens * load.kv_per_token // parts)} GiB of KV cache each, {_gib(needed)} GiB together;"
                f" {_gib(free_bytes)} GiB are free."
                " Lower --kv-cache-tokens, --max-model-len or --dp, or choose smaller --weights or --kv-cache-dtype"
            )


def _gib(number: int) -> str:
    return f"{number / 2**30:.2f}"


def _replica(
    replica: int, executor: str, null: bool, ranks: Sequence[tuple[Place, int, Slot]]
) -> Iterator[PlannedProcess]:
    """The processes of one replica, workers first: they take longest to start. `ranks` are places, bytes and slots.

    The engine is on the host of the first rank, where they all meet.
    """
    name = engine_of(replica)
    inline = executor == "inline"
    sockets = tuple(f"{name}-{socket}" for socket in REPLICA_SOCKETS)
    host = ranks[0][2].host
    meets = (f"{name}-{MEETING}",) if any(slot.host != host for _, _, slot in ranks) else ()
    for place, memory, slot in () if inline else ranks:
        yield PlannedProcess(
            name=f"worker-{replica}-{place.rank}",
            role=Role.WORKER,
            group=name,
            index=replica,
            place=place,
            device=_device(slot, null),
            host=slot.host,
            memory_bytes=memory,
            launched_rank=replica * len(ranks) + place.rank if executor == "external" else None,
            binds=meets if place.rank == 0 else (),
            connects=("supervisor", *sockets, *(meets if place.rank else ())),
        )
    yield PlannedProcess(
        name=name,
        role=Role.ENGINE,
        group=name,
        index=replica,
        place=ONLY if inline else None,
        device=_device(ranks[0][2], null) if inline else None,
        host=host,
        memory_bytes=sum(memory for _, memory, _ in ranks) if inline else 0,
        binds=() if inline else sockets,
        connects=("supervisor", "balancer", "detokenizer-*"),
    )


def _device(slot: Slot, null: bool) -> str:
    if null:
        return "none"
    return f"cpu {slot.device}" if slot.host else "cpu"


def _edge(config: Config) -> list[PlannedProcess]:
    """Frontends and detokenizers of the hosts that have HTTP; a frontend uses the detokenizers of its own host."""
    hosts = [host for host in config.hosts or ("",) if config.has_http(host)]
    if not hosts:
        raise ConfigError("no host has HTTP; set hosts.NAME.http = true for one of them")
    edge: list[PlannedProcess] = []
    detokenizers: list[PlannedProcess] = []
    for turn, host in enumerate(hosts):
        first = turn * config.http.detokenizers
        beside = [_detokenizer(index, host) for index in range(first, first + config.http.detokenizers)]
        first = turn * config.http.frontends
        texts = tuple(one.name for one in beside) if config.hosts else ("detokenizer-*",)
        edge += [_frontend(index, host, texts) for index in range(first, first + config.http.frontends)]
        detokenizers += beside
    balancer = PlannedProcess(
        name="balancer",
        role=Role.BALANCER,
        group="balancer",
        host=config.lead,
        binds=("balancer",),
        connects=("supervisor",),
    )
    return [*edge, *detokenizers, balancer]


def _detokenizer(index: int, host: str) -> PlannedProcess:
    name = f"detokenizer-{index}"
    return PlannedProcess(
        name=name,
        role=Role.DETOKENIZER,
        group=name,
        index=index,
        host=host,
        binds=(name, f"{name}-tokens"),
        connects=("supervisor",),
    )


def _frontend(index: int, host: str, detokenizers: tuple[str, ...]) -> PlannedProcess:
    name = f"frontend-{index}"
    return PlannedProcess(
        name=name,
        role=Role.FRONTEND,
        group=name,
        index=index,
        host=host,
        binds=(name,),
        connects=("supervisor", "balancer", *detokenizers),
    )


def _spare(frontend: PlannedProcess, index: int) -> PlannedProcess:
    return _frontend(index, frontend.host, frontend.connects[2:])


def crossings(topology: Topology) -> list[str]:
    """A line for each tensor group whose ranks are on several hosts."""
    groups: dict[tuple[str, int], list[str]] = {}
    for worker in topology.of_role(Role.WORKER):
        assert worker.place is not None, "workers have a place"
        groups.setdefault((worker.group, worker.place.pipeline_rank), []).append(worker.host)
    return [
        f"the tensor ranks of {group}, stage {stage}, are on hosts {', '.join(dict.fromkeys(hosts))}:"
        " each layer waits for the network twice"
        for (group, stage), hosts in groups.items()
        if len(set(hosts)) > 1
    ]
