"""What a run of `compare.py` writes, and reads back for tables and pictures. The structs are the JSON."""

import msgspec

from peers.limits import Machine, Model
from peers.table import Peer, Row


class Started(msgspec.Struct, frozen=True):
    """One start: seconds until ready, and memory (MiB, each page once) before the first request."""

    peer: str
    ready_s: float
    idle_mib: float
    command: list[str]
    environment: dict[str, str]


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one server. Times are medians of its requests; gaps are those between a stream's events.

    `cpu_s` is what the server's processes used, `others_cores` what neither they nor the client did, in cores.
    """

    peer: str
    row: Row
    round: int
    seconds: float
    tokens_per_s: float
    first_s: float
    gap_median_ms: float | None
    gap_p99_ms: float | None
    prompt_tokens: int
    output_tokens: int
    cpu_s: float
    others_cores: float
    restarted: bool = False
    """Whether the server had failed before it, and was started again."""


class Results(msgspec.Struct, kw_only=True):
    """One run."""

    date: str
    commit: str
    command: list[str]
    machine: dict[str, object]
    versions: dict[str, str]
    peers: list[Peer]
    model: Model
    weight_bytes: dict[str, int]
    """Of each format: what a generated token reads."""
    started: list[Started] = []
    rates: list[Machine] = []
    rounds: list[Round] = []
    used_mib: dict[str, float] = {}
