"""What tells two copies of a model apart, file by file: digests of small files, sizes of weights. Reads no weights."""

import hashlib
from pathlib import Path

from actorlm.checkpoint.description import ModelDescription
from actorlm.checkpoint.resolve import HUB_FILES

GGUF_HEAD = 1 << 20
"""Bytes of a .gguf file that are read: its beginning has the hyperparameters and the tokenizer."""
SHOWN = 16
"""Hexadecimal digits of a digest."""


def digests(model: ModelDescription) -> dict[str, str]:
    """Of each file of the model, by its name; a .gguf file is `weights`, whatever its name is. Raises OSError."""
    path = Path(model.path)
    if model.format == "bytes":
        return {}
    if model.format == "gguf":
        with path.open("rb") as file:
            return {"weights": f"{_digest(file.read(GGUF_HEAD))}, {path.stat().st_size} bytes"}
    found = sorted({file for pattern in HUB_FILES for file in path.glob(pattern)})
    return {file.name: _of(file) for file in found}


def _of(file: Path) -> str:
    if file.suffix == ".safetensors":
        return f"{file.stat().st_size} bytes"
    return _digest(file.read_bytes())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:SHOWN]
