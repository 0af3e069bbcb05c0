"""The actors of one tree as data: who runs where, and which sockets it binds and connects.

Pure: options and a model's numbers in, a table out. `actorlm plan` prints it, `launch` starts it.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from actorlm.config import BLOCK_SIZE, Config
from actorlm.errors import ConfigError, InsufficientMemory
from actorlm.partition import Dimensions, check_tensor, kv_share, rank_parameters, stages

NULL_KV_TOKENS = 262_144
REPLICA_SOCKETS = ("workers", "steps", "results")
ITEM_SIZE = {"auto": 4, "float32": 4, "bfloat16": 2, "float16": 2}


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
    `binds` and `connects` are names of sockets. `launched_rank` is a worker's among all processes of a launcher's job;
    rank 0 starts its own worker.
    """

    name: str
    role: Role
    group: str
    index: int = 0
    place: Place | None = None
    device: str | None = None
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


class RankSize(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker holds, in bytes."""

    weights: int
    kv_per_token: int


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """The whole tree. `directory` holds its sockets; `kv_cache_tokens` is per replica, `threads` per worker."""

    directory: str
    executor: str
    kv_cache_tokens: int
    threads: int
    processes: tuple[PlannedProcess, ...]

    def address(self, socket: str) -> str:
        """The address of a socket by its name. Short, because ipc paths end at 107 bytes."""
        return f"ipc://{self.directory}/{socket}"

    def replica_sockets(self, replica: int) -> ReplicaSockets:
        """Those of one replica."""
        engine = f"engine-{replica}"
        return ReplicaSockets(engine, *(self.address(f"{engine}-{name}") for name in REPLICA_SOCKETS))

    def of_role(self, role: Role) -> list[PlannedProcess]:
        """All processes of one role, in order."""
        return [process for process in self.processes if process.role == role]

    @property
    def memory_bytes(self) -> int:
        """Weights and KV caches of all processes."""
        return sum(process.memory_bytes for process in self.processes)


def plan(config: Config, model: PlannedModel, *, directory: str, free_bytes: int, cores: int) -> Topology:
    """The tree for these options. Raises ConfigError or InsufficientMemory, naming the option and the way out."""
    executor, ranks = _executor(config), places(config.parallel.tensor, config.parallel.pipeline)
    null = config.model.model_impl == "null"
    sizes = [RankSize(weights=0, kv_per_token=0)] * len(ranks) if null else _rank_sizes(config, model)
    kv_tokens = config.cache.kv_cache_tokens
    if kv_tokens is None:
        kv_tokens = NULL_KV_TOKENS if null else _kv_tokens(config, model, sizes, free_bytes)
    kv_tokens -= kv_tokens % BLOCK_SIZE
    _check_memory(config, sizes, kv_tokens, free_bytes)
    memory = [size.weights + kv_tokens * size.kv_per_token for size in sizes]
    replicas = [
        process
        for replica in range(config.parallel.data)
        for process in _replica(replica, executor, "none" if null else "cpu", list(zip(ranks, memory, strict=True)))
    ]
    return Topology(
        directory=directory,
        executor=executor,
        kv_cache_tokens=kv_tokens,
        threads=config.parallel.threads or max(1, cores // (config.parallel.data * len(ranks))),
        processes=(*replicas, *_edge(config)),
    )


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
    if parallel.executor == "auto":
        return "inline" if world_size == 1 else "broadcast"
    return parallel.executor


def _rank_sizes(config: Config, model: PlannedModel) -> list[RankSize]:
    """Of a replica's workers, by rank. Raises ConfigError for a model that cannot be cut in this way."""
    tensor, item_size = config.parallel.tensor, ITEM_SIZE[config.model.dtype]
    check_tensor(model, tensor)
    layers = stages(model, config.parallel.pipeline, config.parallel.layers_of_stages)
    per_layer = 2 * len(kv_share(model.num_kv_heads, tensor, 0)) * model.head_dim * item_size
    parameters = rank_parameters(model, tensor, layers)
    return [
        RankSize(weights=count * item_size, kv_per_token=len(part) * per_layer)
        for count, part in zip(parameters, layers, strict=True)
        for _ in range(tensor)
    ]


def _kv_tokens(config: Config, model: PlannedModel, sizes: Sequence[RankSize], free_bytes: int) -> int:
    """What the KV share of the memory left by the weights holds, but no more than all requests at full length."""
    replicas = config.parallel.data
    left = max(0, free_bytes - replicas * _weights(sizes)) * config.cache.kv_memory_share
    fits = int(left / replicas / _kv_per_token(sizes))
    return max(BLOCK_SIZE, min(fits, config.scheduler.max_num_seqs * model.max_model_len))


def _weights(sizes: Sequence[RankSize]) -> int:
    return sum(size.weights for size in sizes)


def _kv_per_token(sizes: Sequence[RankSize]) -> int:
    return sum(size.kv_per_token for size in sizes)


def _check_memory(config: Config, sizes: Sequence[RankSize], kv_tokens: int, free_bytes: int) -> None:
    weights, cache = _weights(sizes), kv_tokens * _kv_per_token(sizes)
    needed = config.parallel.data * (weights + cache)
    if needed > free_bytes:
        raise InsufficientMemory(
            f"{config.parallel.data} replica(s) need {_gib(weights)} GiB of weights and"
            f" {_gib(cache)} GiB of KV cache each, {_gib(needed)} GiB together;"
            f" {_gib(free_bytes)} GiB are free."
            " Lower --kv-cache-tokens, --max-model-len or --dp, or choose a smaller --dtype"
        )


def _gib(number: int) -> str:
    return f"{number / 2**30:.2f}"


def _replica(replica: int, executor: str, device: str, ranks: Sequence[tuple[Place, int]]) -> Iterator[PlannedProcess]:
    """The processes of one replica, workers first: they take longest to start. `ranks` are places and their bytes."""
    name = f"engine-{replica}"
    inline = executor == "inline"
    sockets = tuple(f"{name}-{socket}" for socket in REPLICA_SOCKETS)
    for place, memory in () if inline else ranks:
        yield PlannedProcess(
            name=f"worker-{replica}-{place.rank}",
            role=Role.WORKER,
            group=name,
            index=replica,
            place=place,
            device=device,
            memory_bytes=memory,
            launched_rank=replica * len(ranks) + place.rank if executor == "external" else None,
            connects=("supervisor", *sockets),
        )
    yield PlannedProcess(
        name=name,
        role=Role.ENGINE,
        group=name,
        index=replica,
        place=ONLY if inline else None,
        device=device if inline else None,
        memory_bytes=sum(memory for _, memory in ranks) if inline else 0,
        binds=() if inline else sockets,
        connects=("supervisor", "balancer", "detokenizer-*"),
    )


def _edge(config: Config) -> list[PlannedProcess]:
    balancer = PlannedProcess(
        name="balancer", role=Role.BALANCER, group="balancer", binds=("balancer",), connects=("supervisor",)
    )
    detokenizers = [
        PlannedProcess(
            name=f"detokenizer-{index}",
            role=Role.DETOKENIZER,
            group=f"detokenizer-{index}",
            index=index,
            binds=(f"detokenizer-{index}", f"detokenizer-{index}-tokens"),
            connects=("supervisor",),
        )
        for index in range(config.http.detokenizers)
    ]
    frontends = [
        PlannedProcess(
            name=f"frontend-{index}",
            role=Role.FRONTEND,
            group=f"frontend-{index}",
            index=index,
            binds=(f"frontend-{index}",),
            connects=("supervisor", "balancer", "detokenizer-*"),
        )
        for index in range(config.http.frontends)
    ]
    return [*frontends, *detokenizers, balancer]
