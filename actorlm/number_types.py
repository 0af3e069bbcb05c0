"""The types of the KV cache, by their names, and the bytes that they take. Imports no torch."""

SIZES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
"""Bytes of a number."""
SCALE_BYTES = 4
"""Of a vector of int8: it has one scale, in float32."""


def kv_type(kv_cache_dtype: str, dtype: str) -> str:
    """What the options `kv_cache_dtype` and `dtype` say together: one of SIZES."""
    wanted = dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    return "float32" if wanted == "auto" else wanted


def vector_bytes(kind: str, head_dim: int) -> int:
    """Of the key, or of the value, of one token and one head."""
    return head_dim * SIZES[kind] + (SCALE_BYTES if kind == "int8" else 0)
