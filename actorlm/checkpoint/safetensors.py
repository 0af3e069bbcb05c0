"""Checks a directory's safetensors files by their headers alone: complete, consistent, and how much they hold.

Reads no tensor and imports no torch. A download that was cut off is found here, before any process of the tree starts.
"""

import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from actorlm.checkpoint.typed_json import convert, decode_json, read_json
from actorlm.errors import ModelError, reason_of

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER = 100_000_000
"""Bytes; the format's own limit."""


class Weights(NamedTuple):
    """The shards of a model in the order of their names, and what their headers declare in total."""

    paths: tuple[Path, ...]
    num_parameters: int
    num_bytes: int


class Tensor(msgspec.Struct, frozen=True):
    """What a header says of one tensor. `data_offsets` count from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def check_weights(directory: Path) -> Weights:
    """Finds and verifies the weights. Raises ModelError if a shard is missing, cut off, or lacks a listed tensor."""
    index = directory / INDEX
    if not index.exists():
        if not (directory / SINGLE).exists():
            raise ModelError(f"{directory} has neither {SINGLE} nor {INDEX}; weights must be in safetensors format")
        return _totals([(directory / SINGLE, set())])
    weight_map = read_json(index, _Index).weight_map
    names: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        if Path(shard).name != shard:
            raise ModelError(f"{index} names the shard {shard!r}; shards must lie in the same directory")
        names.setdefault(shard, set()).add(tensor)
    return _totals([(directory / shard, names[shard]) for shard in sorted(names)])


def _totals(shards: list[tuple[Path, set[str]]]) -> Weights:
    parameters = num_bytes = 0
    for path, listed in shards:
        tensors = read_header(path)
        absent = sorted(listed - tensors.keys())
        if absent:
            raise ModelError(f"{path} lacks the tensor {absent[0]} that {INDEX} says it has")
        parameters += sum(math.prod(tensor.shape) for tensor in tensors.values())
        num_bytes += sum(tensor.data_offsets[1] - tensor.data_offsets[0] for tensor in tensors.values())
    return Weights(tuple(path for path, _ in shards), parameters, num_bytes)


def read_header(path: Path) -> dict[str, Tensor]:
    """The header of one safetensors file, after checking that the file is exactly as long as it says."""
    try:
        actual = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if not 2 <= length <= MAX_HEADER or 8 + length > actual:
                raise ModelError(
                    f"{path} is damaged or cut off: its {actual} bytes hold no complete safetensors header"
                )
            header = decode_json(file.read(length), dict[str, Any], path)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {reason_of(error)}") from error
    header.pop("__metadata__", None)
    tensors = {name: convert(entry, Tensor, f"{path} is damaged: tensor {name}") for name, entry in header.items()}
    expected = 8 + length + max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
    if actual != expected:
        raise ModelError(f"{path} has {actual} bytes, but its header describes {expected}; download it again")
    return tensors
