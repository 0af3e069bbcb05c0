"""The actors of one tree as data: who runs where, and which sockets it binds and connects.

Pure: options and a model's numbers in, a table out. `actorlm plan` prints it, `launch` starts it.
"""

from enum import StrEnum

import msgspec

from actorlm.config import BLOCK_SIZE, Config
from actorlm.errors import ConfigError, InsufficientMemory

NULL_KV_TOKENS = 262_144
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


ONLY = Place()
"""The place of a replica's only worker."""


class PlannedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process and its actor.

    `index` is the frontend's or detokenizer's number, or the replica of an engine or worker; `rank` is a worker's
    within its replica. Processes of one `group` live and die together. `binds` and `connects` are names of sockets.
    `device` is set where tensors are.
    """

    name: str
    role: Role
    group: str
    index: int = 0
    rank: int | None = None
    device: str | None = None
    binds: tuple[str, ...] = ()
    connects: tuple[str, ...] = ()
    memory_bytes: int = 0


class ModelSize(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a model that a plan needs."""

    num_parameters: int
    kv_bytes_per_token: int
    max_model_len: int


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

    def of_role(self, role: Role) -> list[PlannedProcess]:
        """All processes of one role, in order."""
        return [process for process in self.processes if process.role == role]

    @property
    def memory_bytes(self) -> int:
        """Weights and KV caches of all processes."""
        return sum(process.memory_bytes for process in self.processes)


def plan(config: Config, size: ModelSize, *, directory: str, free_bytes: int, cores: int) -> Topology:
    """The tree for these options. Raises ConfigError or InsufficientMemory, naming the option and the way out."""
    executor = _executor(config)
    item_size = ITEM_SIZE[config.model.dtype]
    null = config.model.model_impl == "null"
    weights = 0 if null else size.num_parameters * item_size
    kv_tokens = NULL_KV_TOKENS if null else _kv_tokens(config, size, weights, free_bytes)
    if config.cache.kv_cache_tokens is not None:
        kv_tokens = config.cache.kv_cache_tokens
    kv_tokens -= kv_tokens % BLOCK_SIZE
    memory = weights + (0 if null else kv_tokens * size.kv_bytes_per_token)
    _check_memory(config, weights, memory, free_bytes)
    replicas = [
        process
        for replica in range(config.parallel.data)
        for process in _replica(replica, executor, "none" if null else "cpu", memory)
    ]
    return Topology(
        directory=directory,
        executor=executor,
        kv_cache_tokens=kv_tokens,
        threads=config.parallel.threads or max(1, cores // config.parallel.data),
        processes=(*replicas, *_edge(config)),
    )


def _executor(config: Config) -> str:
    for flag, value in (("--tp", config.parallel.tensor), ("--pp", config.parallel.pipeline)):
        if value > 1:
            raise ConfigError(f"{flag} {value}: this version runs a replica on one device; use --dp for replicas")
    return "inline" if config.parallel.executor == "auto" else config.parallel.executor


def _kv_tokens(config: Config, size: ModelSize, weights: int, free_bytes: int) -> int:
    """What the KV share of the memory left by the weights holds, but no more than all requests at full length."""
    left = max(0, free_bytes - config.parallel.data * weights) * config.cache.kv_memory_share
    fits = int(left / config.parallel.data / size.kv_bytes_per_token)
    return max(BLOCK_SIZE, min(fits, config.scheduler.max_num_seqs * size.max_model_len))


def _check_memory(config: Config, weights: int, per_replica: int, free_bytes: int) -> None:
    needed = config.parallel.data * per_replica
    if needed > free_bytes:
        raise InsufficientMemory(
            f"{config.parallel.data} replica(s) need {_gib(weights)} GiB of weights and"
            f" {_gib(per_replica - weights)} GiB of KV cache each, {_gib(needed)} GiB together;"
            f" {_gib(free_bytes)} GiB are free."
            " Lower --kv-cache-tokens, --max-model-len or --dp, or choose a smaller --dtype"
        )


def _gib(number: int) -> str:
    return f"{number / 2**30:.2f}"


def _replica(replica: int, executor: str, device: str, memory: int) -> list[PlannedProcess]:
    name = f"engine-{replica}"
    inline = executor == "inline"
    engine = PlannedProcess(
        name=name,
        role=Role.ENGINE,
        group=name,
        index=replica,
        rank=0 if inline else None,
        device=device if inline else None,
        memory_bytes=memory if inline else 0,
        binds=() if inline else tuple(f"{name}-{socket}" for socket in ("workers", "steps", "results")),
        connects=("supervisor", "balancer", "detokenizer-*"),
    )
    if inline:
        return [engine]
    worker = PlannedProcess(
        name=f"worker-{replica}-0",
        role=Role.WORKER,
        group=name,
        index=replica,
        rank=0,
        device=device,
        memory_bytes=memory,
        connects=("supervisor", f"{name}-workers", f"{name}-steps", f"{name}-results"),
    )
    return [worker, engine]


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
