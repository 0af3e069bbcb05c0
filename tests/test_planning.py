"""What a start says of the model's arithmetic."""

import msgspec
import pytest

from actorlm.config import Config
from actorlm.planning import kernels


@pytest.mark.parametrize(
    ("dtype", "kv_cache_dtype", "said"),
    [("bfloat16", "auto", "bfloat16"), ("bfloat16", "int8", "int8"), ("auto", "float16", "float16")],
)
def test_kernels_and_the_type_of_the_cache(dtype, kv_cache_dtype, said):
    options = {"model": {"dtype": dtype, "cpu_kernels": "torch"}, "cache": {"kv_cache_dtype": kv_cache_dtype}}
    assert kernels(msgspec.convert(options, Config)).endswith(f"KV cache {said}")


def test_the_null_model_has_neither():
    assert "cache" not in kernels(msgspec.convert({"model": {"model_impl": "null"}}, Config))
