"""Every option, once. Flags, environment variables, TOML keys and `--help` derive from these structs.

The TOML key of a field is `[section] field`; its flag is `--field` with dashes, unless the field's metadata
names another (`parallel.data` is `--dp`); its variable is `ACTORLM_` and the flag in capitals. A flag beats the
environment, which beats the file. This module is the only one that reads the environment.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from actorlm.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m"
BLOCK_SIZE = 16
"""Tokens of one KV block."""


def option(help_text: str, *, unit: str = "", flag: str = "", **bounds: Any) -> Any:
    """Metadata of a field: its help, its unit, its flag where that is not the field's name, its bounds."""
    return msgspec.Meta(description=help_text, extra={"unit": unit, "flag": flag}, **bounds)


AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
AtLeastTwo = Annotated[int, msgspec.Meta(ge=2)]
SchedulingPolicy = Literal["fcfs", "priority"]
LogFormat = Literal["console", "json"]
AtLeastOneBlock = Annotated[int, msgspec.Meta(ge=16)]


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the TOML file and a group of `--help`."""


class ModelConfig(_Section, frozen=True):
    """Model."""

    path: Annotated[
        str | None,
        option(f"hub id, directory with safetensors, .gguf file, or {DEFAULT_MODEL} (the default)", flag="model"),
    ] = None
    served_model_name: Annotated[str | None, option("name that clients use; default: the model's own")] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        option("type of weights and KV cache; auto: float16 for compiled kernels, float32 for plain torch"),
    ] = "auto"
    weights: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8", "gguf"],
        option(
            "form of the matrices; auto: that of --dtype; int8: one scale for each output, and inputs of 8 bits;"
            " gguf: the file's blocks as they are, and inputs of 8 bits"
        ),
    ] = "auto"
    device: Annotated[
        Literal["cpu", "cuda"],
        option("what computes the model; cuda: Triton's kernels on one GPU, which nobody has run on a real one yet"),
    ] = "cpu"
    cpu_kernels: Annotated[
        Literal["auto", "native", "torch"],
        option("native: compiled when the package was installed; torch: plain torch, slower; auto: native if there"),
    ] = "auto"
    model_impl: Annotated[
        Literal["auto", "null"],
        option("auto runs the model; null hashes token ids instead, without torch or weights"),
    ] = "auto"
    null_step_ms: Annotated[float, option("time of one step of the null model", unit="ms", ge=0)] = 0.0
    generation_config: Annotated[
        Literal["auto", "none"],
        option("auto: requests that say nothing are sampled as the model's generation_config.json recommends"),
    ] = "auto"
    max_model_len: Annotated[
        AtLeastTwo | None, option("longest sequence, prompt and output; default: the model's own", unit="tokens")
    ] = None


class ParallelConfig(_Section, frozen=True):
    """Parallelism."""

    data: Annotated[int, option("replicas of the model, each an EngineCore", flag="dp", ge=1, le=64)] = 1
    tensor: Annotated[int, option("devices that share each layer of a replica", flag="tp", ge=1, le=64)] = 1
    pipeline: Annotated[int, option("devices that share the layers of a replica", flag="pp", ge=1, le=64)] = 1
    pipeline_layers: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(,[0-9]+)*$")] | None,
        option("layers of each pipeline stage, such as 16,14; default: stages of about equally many parameters"),
    ] = None
    executor: Annotated[
        Literal["auto", "inline", "broadcast", "ray", "external"],
        option(
            "inline: the worker in its EngineCore's process; broadcast: a process per worker; ray: the same, placed by"
            " Ray; external: the processes that torchrun or its like has started"
        ),
    ] = "auto"
    ray_address: Annotated[
        str | None,
        option(
            "cluster that --executor ray uses, HOST:PORT, or auto for this machine's; default: one of the tree's own"
        ),
    ] = None
    threads: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=1024)] | None,
        option("threads of each worker's tensor arithmetic; default: cores / workers"),
    ] = None

    @property
    def layers_of_stages(self) -> tuple[int, ...]:
        """`pipeline_layers` as numbers; empty if it is not given."""
        return tuple(map(int, self.pipeline_layers.split(","))) if self.pipeline_layers else ()


class CacheConfig(_Section, frozen=True):
    """KV cache."""

    kv_cache_tokens: Annotated[
        AtLeastOneBlock | None,
        option("capacity of each replica; default: what a share of the free memory holds", unit="tokens"),
    ] = None
    kv_memory_share: Annotated[
        float, option("share of the free memory that all replicas' KV caches may take together", gt=0, le=0.9)
    ] = 0.25
    kv_cache_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8"],
        option("type of keys and values; int8 has a scale for each vector; auto is that of --dtype"),
    ] = "auto"
    prefix_caching: Annotated[bool, option("reuse the KV blocks of equal prefixes")] = True


class SchedulerConfig(_Section, frozen=True):
    """Scheduler."""

    scheduling_policy: Annotated[
        SchedulingPolicy,
        option(
            "fcfs: requests run as they arrive; priority: lower ones first, and who waits rises",
        ),
    ] = "fcfs"
    max_num_seqs: Annotated[int, option("requests computed together", unit="requests", ge=1, le=4096)] = 256
    max_num_batched_tokens: Annotated[
        int, option("tokens computed in one step; longer prompts are cut into chunks", unit="tokens", ge=1)
    ] = 2048
    max_waiting: Annotated[
        int, option("requests that may wait in one replica; one more is refused with 429", unit="requests", ge=1)
    ] = 20_480
    max_waiting_tokens: Annotated[
        int,
        option(
            "tokens of the requests that may wait in one replica; a request that would be more is refused with 429",
            unit="tokens",
            ge=1,
        ),
    ] = 16_777_216
    async_scheduling: Annotated[
        bool, option("plan a step while the one before it is computed; tokens are the same either way")
    ] = True

    @property
    def max_running(self) -> int:
        """Requests that run together: each needs a token of every step."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)


class BalancingConfig(_Section, frozen=True):
    """Balancing."""

    prefix_affinity: Annotated[
        bool, option("send requests to replicas that hold the beginnings of their prompts; needs prefix caching")
    ] = True
    max_imbalance: Annotated[
        int,
        option(
            "expected work above the least loaded replica's up to which another one is chosen for a session or for what"
            " it holds of a prompt; a generated token counts as 4",
            unit="tokens",
            ge=0,
        ),
    ] = 8192


class TimeoutsConfig(_Section, frozen=True):
    """Time limits of requests."""

    queue_timeout_s: Annotated[
        float, option("time that a request may wait before it runs; then it ends with 504; 0: any", unit="s", ge=0)
    ] = 0.0
    request_timeout_s: Annotated[
        float,
        option(
            "time that a request may take; then it ends with 504; 0: any; requests may ask for less themselves",
            unit="s",
            ge=0,
        ),
    ] = 0.0


class HttpConfig(_Section, frozen=True):
    """HTTP."""

    host: Annotated[str, option("address to listen on")] = "127.0.0.1"
    port: Annotated[int, option("port to listen on", ge=0, le=65535)] = 8000
    api_key: Annotated[str | None, option("key that every route but /health then needs; prefer ACTORLM_API_KEY")] = None
    api_keys_file: Annotated[
        str | None, option("hashes of such keys, with names and limits; made with `actorlm api-keys add`")
    ] = None
    admin_key: Annotated[
        str | None, option("key that routes below /admin need, which are not there without; prefer ACTORLM_ADMIN_KEY")
    ] = None
    admin_keys_file: Annotated[str | None, option("hashes of such keys; made with `actorlm api-keys add`")] = None
    tls_certificate: Annotated[
        str | None, option("serve https: file with the certificate and those between it and its authority, PEM")
    ] = None
    tls_key: Annotated[str | None, option("file with the certificate's private key, PEM")] = None
    tls_client_ca: Annotated[
        str | None, option("file with authorities, PEM; clients then need a certificate of one of them")
    ] = None
    frontends: Annotated[int, option("frontend processes that share the port", ge=1, le=64)] = 1
    detokenizers: Annotated[int, option("detokenizer processes", ge=1, le=64)] = 1
    stream_keep_alive_s: Annotated[
        float,
        option(
            "silence after which a stream sends a comment; its headers then leave at once; 0: never", unit="s", ge=0
        ),
    ] = 0.0
    max_connections: Annotated[
        int, option("connections of each frontend; one more is answered 503", unit="connections", ge=1, le=1_000_000)
    ] = 8192
    max_body_mib: Annotated[int, option("largest request body", unit="MiB", ge=1, le=1024)] = 32
    max_choices: Annotated[int, option("most choices of one request: n times the number of prompts", ge=1)] = 1024


class SupervisionConfig(_Section, frozen=True):
    """Supervision."""

    start_timeout_s: Annotated[float, option("time to be ready in, else the tree exits", unit="s", gt=0)] = 600.0
    drain_timeout_s: Annotated[float, option("time that accepted requests get after SIGTERM", unit="s", ge=0)] = 30.0
    drain_delay_s: Annotated[
        float,
        option("time after SIGTERM in which requests are still accepted, while /ready says no already", unit="s", ge=0),
    ] = 0.0
    heartbeat_timeout_s: Annotated[float, option("silence after which an actor is killed", unit="s", gt=1)] = 10.0
    stall_timeout_s: Annotated[
        float,
        option("time in which an actor that has something to do must do some of it, else it is killed", unit="s", gt=1),
    ] = 30.0
    step_timeout_s: Annotated[
        float, option("time of a step after which its replica restarts; a fifth of it is warned of", unit="s", gt=0)
    ] = 300.0
    max_restarts: Annotated[
        int, option("restarts of one actor, or of one replica, within the window; one more ends the tree", ge=0)
    ] = 3
    restart_window_s: Annotated[float, option("time in which restarts are counted", unit="s", gt=0)] = 60.0
    max_restart_pause_s: Annotated[
        float,
        option("longest pause before a restart; the first is 0.1 s, each further one twice as long", unit="s", ge=0),
    ] = 5.0
    log_level: Annotated[Literal["debug", "info", "warning", "error"], option("least severe lines shown")] = "info"


class ObservabilityConfig(_Section, frozen=True):
    """Observability."""

    log_format: Annotated[LogFormat, option("console: for people; json: one JSON object a line, whoever writes it")] = (
        "console"
    )
    log_requests: Annotated[bool, option("log a line when an HTTP request has been answered")] = False
    otlp_endpoint: Annotated[
        str | None,
        option("collector that gets traces, by OTLP over HTTP, such as http://127.0.0.1:4318; needs actorlm[otel]"),
    ] = None
    trace_share: Annotated[
        float, option("share of the requests traced whose clients do not say whether they are", ge=0, le=1)
    ] = 1.0
    record_dir: Annotated[
        str | None, option("directory in which each EngineCore records what its scheduler does, for `actorlm replay`")
    ] = None
    record_redacted: Annotated[
        bool, option("replace the token ids of a recording by others that lead to the same decisions")
    ] = True
    record_max_mib: Annotated[int, option("size at which a recording ends", unit="MiB", ge=1)] = 1024


class SecurityConfig(_Section, frozen=True):
    """Security of the sockets between hosts."""

    keys: Annotated[
        str | None, option("directory of keys that `actorlm keys` made; tcp:// sockets then encrypt and know each peer")
    ] = None
    insecure: Annotated[
        bool, option("let tcp:// sockets beyond this machine do without keys: who reaches them controls the tree")
    ] = False


class SocketsConfig(_Section, frozen=True):
    """Sockets between hosts."""

    ports: Annotated[
        str, option("TCP ports of each host for its sockets that other hosts reach", pattern=r"^[0-9]+-[0-9]+$")
    ] = "7000-7099"


class HostConfig(_Section, frozen=True):
    """One host, `[hosts.NAME]` of the file. `http` says whether it has frontends; by default the first host alone has.

    `devices` are those that workers may have, each one worker; on a CPU they are slots, whose numbers mean nothing.
    """

    address: str
    devices: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = (0,)
    http: bool | None = None


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of one tree. `hosts`, and `pins`, addresses of sockets by their names, come from the file alone."""

    model: ModelConfig = ModelConfig()
    parallel: ParallelConfig = ParallelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    balancing: BalancingConfig = BalancingConfig()
    timeouts: TimeoutsConfig = TimeoutsConfig()
    http: HttpConfig = HttpConfig()
    supervision: SupervisionConfig = SupervisionConfig()
    observability: ObservabilityConfig = ObservabilityConfig()
    security: SecurityConfig = SecurityConfig()
    sockets: SocketsConfig = SocketsConfig()
    hosts: dict[str, HostConfig] = {}
    pins: dict[str, str] = {}

    @property
    def lead(self) -> str:
        """The host whose supervisor leads: the first of the file; empty if all is on one machine."""
        return next(iter(self.hosts), "")

    def has_http(self, host: str) -> bool:
        """Whether a host has frontends and detokenizers."""
        wanted = self.hosts[host].http if host else True
        return host == self.lead if wanted is None else wanted


def runtime_directories() -> list[Path]:
    """Candidates for the directory that holds the sockets of this user's trees, best first."""
    name = f"actorlm-{os.getuid()}"
    wanted = (os.environ.get("XDG_RUNTIME_DIR"), "/tmp", os.environ.get("TMPDIR"))  # noqa: S108 - made private, or refused
    return [Path(directory) / name for directory in wanted if directory]


SECRET_VARIABLES = frozenset({"ACTORLM_API_KEY", "ACTORLM_ADMIN_KEY"})
"""What only the process that reads the options needs."""


def environment() -> dict[str, str]:
    """The variables that may set options."""
    return {key: value for key, value in os.environ.items() if key.startswith("ACTORLM_")}


class Launched(msgspec.Struct, frozen=True):
    """What `torchrun` and its like tell each of the processes that they start, in the environment.

    `store_exists` says that the launcher itself holds a store at the master's address; otherwise rank 0 does. `attempt`
    counts the launcher's restarts of the job.
    """

    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    master_port: int
    store_exists: bool = False
    attempt: int = 0


def launched() -> Launched:
    """What this process was told. Raises ConfigError naming the variable that is missing or wrong."""
    return Launched(
        rank=_number("RANK"),
        world_size=_number("WORLD_SIZE"),
        local_rank=_number("LOCAL_RANK"),
        master_addr=_variable("MASTER_ADDR"),
        master_port=_number("MASTER_PORT"),
        store_exists=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ConfigError(
            f"--executor external: {name} is not set; start the ranks with torchrun, or a launcher that sets RANK,"
            " WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT"
        )
    return value


def _number(name: str) -> int:
    value = _variable(name)
    if not value.isdecimal():
        raise ConfigError(f"--executor external: {name} is {value!r}; it must be a number")
    return int(value)


def client_api_key() -> str | None:
    """The key that clients of OpenAI-compatible servers send, as all of them read it."""
    return os.environ.get("OPENAI_API_KEY") or None


def cache_directory() -> Path:
    """Where pulled models are kept, by the XDG convention."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "actorlm"
