"""Which types `auto` stands for, and what is refused before anything starts."""

import msgspec
import pytest

from actorlm.checkpoint.description import ModelDescription
from actorlm.config import CacheConfig, Config, ModelConfig, ParallelConfig
from actorlm.errors import ConfigError
from actorlm.kernels.native import choose_level
from actorlm.planning import kernels, with_types

MODEL = ModelDescription(
    path="m", format="safetensors", name="m", architecture="a", vocab_size=9, max_model_len=9, bos_token_id=None,
    eos_token_ids=(),
)  # fmt: skip
GGUF = msgspec.structs.replace(MODEL, format="gguf")

native = pytest.mark.skipif(choose_level("auto") is None, reason="there are no compiled kernels")


def types(model=MODEL, kv="auto", **options):
    config = with_types(Config(model=ModelConfig(**options), cache=CacheConfig(kv_cache_dtype=kv)), model)
    return config.model.dtype, config.model.weights, config.cache.kv_cache_dtype


@native
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("float16", "float16", "float16")),
        ({"dtype": "float32"}, ("float32", "float32", "float32")),
        ({"weights": "float32"}, ("float32", "float32", "float32")),
        ({"weights": "int8"}, ("float16", "int8", "float16")),
        ({"weights": "gguf", "kv": "int8"}, ("float16", "gguf", "int8")),
        ({"weights": "int8", "dtype": "float32"}, ("float32", "int8", "float32")),
        ({"weights": "bfloat16", "dtype": "float32"}, ("float32", "bfloat16", "float32")),
    ],
)
def test_with_compiled_kernels(options, expected):
    assert types(GGUF, **options) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("float32", "float32", "float32")),
        ({"dtype": "bfloat16"}, ("bfloat16", "bfloat16", "bfloat16")),
        ({"weights": "float16", "kv": "int8"}, ("float16", "float16", "int8")),
        ({"weights": "float16", "dtype": "float16"}, ("float16", "float16", "float16")),
    ],
)
def test_plain_torch_has_one_type(options, expected):
    assert types(cpu_kernels="torch", **options) == expected


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"weights": "int8"}, r"--weights int8 needs the compiled kernels.*float32 or bfloat16 or float16"),
        ({"weights": "float16", "dtype": "float32"}, r"--weights float16 and --dtype float32 differ"),
    ],
)
def test_what_plain_torch_has_not(options, complaint):
    with pytest.raises(ConfigError, match=complaint) as caught:
        types(cpu_kernels="torch", **options)
    assert caught.value.param == "weights"


@native
def test_blocks_need_a_gguf_file():
    with pytest.raises(ConfigError, match=r"--weights gguf keeps the blocks of a \.gguf file, and m is none.*int8"):
        types(weights="gguf")


@pytest.mark.parametrize("options", [{}, {"dtype": "float16"}, {"weights": "float32", "kv": "float32"}])
def test_a_gpu_has_one_type(options):
    made = with_types(on_gpu(**options), MODEL)
    assert {made.model.dtype, made.model.weights, made.cache.kv_cache_dtype} == {
        next(iter(options.values()), "bfloat16")
    }
    assert kernels(made).startswith("Triton, on a GPU; weights")


def on_gpu(kv="auto", tokens=64, parallel=None, **options):
    cache = CacheConfig(kv_cache_dtype=kv, kv_cache_tokens=tokens)
    return Config(model=ModelConfig(device="cuda", **options), cache=cache, parallel=parallel or ParallelConfig())


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"weights": "int8"}, "one type .*, and not int8; use --dtype alone"),
        ({"dtype": "float16", "kv": "float32"}, "one type for weights and KV cache"),
        ({"tokens": None}, "does not size the KV cache itself; give --kv-cache-tokens"),
        ({"parallel": ParallelConfig(tensor=2)}, "one GPU, for one replica; use --dp 1 --tp 1 --pp 1"),
    ],
)
def test_what_a_gpu_cannot_do_yet(options, complaint):
    with pytest.raises(ConfigError, match=f"--device cuda.*{complaint}") as caught:
        with_types(on_gpu(**options), MODEL)
    assert caught.value.param == "device"


def test_the_null_model_has_no_types():
    assert types(model_impl="null", weights="int8") == ("auto", "int8", "auto")


def test_what_is_told_names_the_weights():
    config = with_types(Config(model=ModelConfig(cpu_kernels="torch", dtype="bfloat16")), MODEL)
    assert kernels(config) == "plain torch; weights bfloat16, KV cache bfloat16"
