"""The size of the model that is compared, read from its files."""

import math
from pathlib import Path

from actorlm.checkpoint.gguf import GgufFile
from peers.limits import Model

PACKED = ("f32", "f16", "q8_0", "q4_1")
HEAD = "token_embd.weight"
"""Tied: the matrix of the embedding is that of the logits, so that each token reads it whole."""


def model(path: Path) -> Model:
    """Of a GGUF file."""
    with GgufFile(path) as file:
        matrices = {name: tensor.shape for name, tensor in file.tensors.items() if len(tensor.shape) > 1}
        section = file.section("llama.")
        layers, width = (int(str(section[key])) for key in ("block_count", "embedding_length"))
    sizes = {name: math.prod(shape) for name, shape in matrices.items()}
    return Model(body=sum(sizes.values()) - sizes[HEAD], head=sizes[HEAD], attention=layers * width)


def weight_bytes(directory: Path) -> dict[str, int]:
    """Of the tensors in each format; int8 has a byte a number and a float32 a row."""
    found = {}
    for name in PACKED:
        with GgufFile(directory / f"{name}.gguf") as file:
            found[name] = sum(tensor.size for tensor in file.tensors.values())
            shapes = [tensor.shape for tensor in file.tensors.values()]
    found["int8"] = sum(shape[0] * (shape[1] + 4) if len(shape) > 1 else 4 * shape[0] for shape in shapes)
    return found
