"""What is compared: servers, rows of work, and which ratios are printed. All of it is data."""

from typing import Literal, get_args

import msgspec

Family = Literal["actorlm", "llama.cpp", "vllm", "openvino"]
Arithmetic = Literal["fp32", "bf16", "int8"]
Row = Literal["one", "prefill", "many", "shared", "streams", "start"]
ROWS: tuple[Row, ...] = get_args(Row)

THREADS = 2


class Peer(msgspec.Struct, frozen=True):
    """A server in one format. `model` is a file of `peers/models.py`; `arithmetic` is what its weights make possible.

    `weights` names the format that a generated token reads, from which its limit follows. `starts` is how often its
    start is timed; `skips` names the rows that it is left out of.
    """

    name: str
    family: Family
    model: str
    weights: str
    arithmetic: Arithmetic
    options: tuple[str, ...] = ()
    starts: int = 3
    skips: tuple[Row, ...] = ()


PEERS = (
    Peer("actorlm-float32", "actorlm", "f32.gguf", "f32", "fp32", ("--dtype", "float32")),
    Peer("actorlm-float16", "actorlm", "f16.gguf", "f16", "fp32", ("--dtype", "float16")),
    Peer("actorlm-int8", "actorlm", "f16.gguf", "int8", "int8", ("--weights", "int8")),
    Peer("actorlm-q8", "actorlm", "q8_0.gguf", "q8_0", "int8", ("--weights", "gguf")),
    Peer("actorlm-q4", "actorlm", "q4_1.gguf", "q4_1", "int8", ("--weights", "gguf")),
    Peer("llama-f32", "llama.cpp", "f32.gguf", "f32", "fp32", skips=("many", "shared")),
    Peer("llama-q8", "llama.cpp", "q8_0.gguf", "q8_0", "int8"),
    Peer("llama-q4", "llama.cpp", "q4_1.gguf", "q4_1", "int8"),
    Peer("openvino-f16", "openvino", "f16.gguf", "f16", "bf16"),
    Peer("openvino-q8", "openvino", "q8_0.gguf", "q8_0", "int8"),
    Peer("vllm-f32", "vllm", "hf", "f32", "fp32", starts=1),
)
"""llama.cpp in float32 takes over a minute for the rows that it is left out of, where its Q8_0 is ahead of it."""


class Work(msgspec.Struct, frozen=True):
    """So many requests at once; tokens of each prompt, of its beginning that all share, and of each answer."""

    requests: int
    input_len: int
    output_len: int
    shared: int = 0
    rounds: int = 3


WORK: dict[Row, Work] = {
    "one": Work(1, 16, 128, rounds=5),
    "prefill": Work(1, 1024, 1, rounds=5),
    "many": Work(64, 128, 64),
    "shared": Work(64, 544, 32, shared=512),
    "streams": Work(8, 128, 64, rounds=5),
}
"""`start` is no work: it is measured when the servers are started."""


class Figure(msgspec.Struct, frozen=True):
    """One number of a row: its field in a round, its unit, and whether less is better."""

    row: Row
    field: str
    title: str
    unit: str
    less: bool = False


FIGURES = (
    Figure("one", "tokens_per_s", "one stream, 16 in, 128 out", "tokens/s"),
    Figure("prefill", "first_s", "1,024 tokens in, time to the first token", "s", less=True),
    Figure("many", "tokens_per_s", "64 at once, 128 in, 64 out", "tokens/s"),
    Figure("shared", "tokens_per_s", "64 at once, 512 shared + 32 in, 32 out", "tokens/s"),
    Figure("streams", "tokens_per_s", "8 streams, 128 in, 64 out", "tokens/s"),
    Figure("streams", "gap_p99_ms", "8 streams, p99 between tokens", "ms", less=True),
    Figure("start", "ready_s", "start to ready", "s", less=True),
    Figure("start", "idle_mib", "memory, idle", "MiB", less=True),
)


class Aim(msgspec.Struct, frozen=True):
    """Ours, divided by the best of `others`, is to be at least `factor`, or at most where less is better.

    `ours` are formats; the ratio is printed for each of them that was measured.
    """

    row: Row
    field: str
    ours: tuple[str, ...]
    others: tuple[str, ...]
    factor: float


FULL = ("actorlm-float32", "actorlm-float16")
PACKED = ("actorlm-int8", "actorlm-q8", "actorlm-q4")
LLAMA_PACKED = ("llama-q8", "llama-q4")
EVERYONE = tuple(peer.name for peer in PEERS if peer.family != "actorlm")

AIMS = (
    Aim("one", "tokens_per_s", ("actorlm-float32",), ("llama-f32",), 1.2),
    Aim("one", "tokens_per_s", ("actorlm-float16",), ("openvino-f16",), 2.5),
    Aim("one", "tokens_per_s", PACKED, LLAMA_PACKED, 1.5),
    Aim("prefill", "first_s", FULL, ("openvino-f16",), 0.95),
    Aim("prefill", "first_s", PACKED, ("openvino-f16",), 0.65),
    Aim("many", "tokens_per_s", FULL, ("openvino-f16",), 1.1),
    Aim("many", "tokens_per_s", PACKED, ("openvino-f16",), 1.5),
    Aim("shared", "tokens_per_s", FULL, ("vllm-f32",), 1.5),
    Aim("shared", "tokens_per_s", PACKED, ("vllm-f32",), 2.2),
    Aim("streams", "tokens_per_s", FULL + PACKED, EVERYONE, 1.0),
    Aim("streams", "gap_p99_ms", FULL + PACKED, EVERYONE, 1.0),
    Aim("start", "idle_mib", FULL + PACKED, EVERYONE, 1.0),
)
