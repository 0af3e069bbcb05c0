"""The types of numbers that weights and the KV cache may have, by their names, and their bytes. Imports no torch."""

SIZES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
"""Bytes of a number."""
FLOATS = ("float32", "bfloat16", "float16")
SCALE_BYTES = 4
"""Of a cached vector of int8: it has one scale, in float32."""


def type_of(option: str, dtype: str) -> str:
    """What `--weights` or `--kv-cache-dtype` and `--dtype` say together: one of SIZES, or another form of weights."""
    wanted = dtype if option == "auto" else option
    return "float32" if wanted == "auto" else wanted


def vector_bytes(kind: str, head_dim: int) -> int:
    """Of the key, or of the value, of one token and one head."""
    return head_dim * SIZES[kind] + (SCALE_BYTES if kind == "int8" else 0)
