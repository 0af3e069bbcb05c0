"""What every start begins with: the model that the options name, and the plan for this machine. Starts nothing."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import psutil

from actorlm.checkpoint.describe import describe
from actorlm.checkpoint.description import ModelDescription
from actorlm.checkpoint.pull import Progress, pulled_path
from actorlm.checkpoint.resolve import ResolvedModel, resolve
from actorlm.config import Config
from actorlm.errors import ConfigError, ModelError
from actorlm.kernels.native import choose_level, describe_choice
from actorlm.number_types import FLOATS, type_of
from actorlm.topology import Topology, plan

SPIN_VARIABLE = "GOMP_SPINCOUNT"
SPIN_COUNT = "20000"
"""How long OpenMP's threads wait busily between two operations. One stream of SmolLM2 in float32 on two cores with
AVX-512 made 29.4 tokens/s with it, 30.2 with libgomp's own 300,000, 21.0 without; long spinning starves others."""


def find_model(config: Config, progress: Progress) -> ModelDescription:
    """The model of these options, fetched if need be."""
    return _describe(config, resolve(config.model.path, null=_is_null(config), progress=progress))


def describe_present(config: Config) -> ModelDescription:
    """Like `find_model`, for a command that fetches nothing. Raises ModelError for a model that is not there yet."""

    def absent(name: str, **_: object) -> Path:
        path = pulled_path(name)
        if not path.exists():
            raise ModelError(f"{name} is not in the cache yet; fetch it with `actorlm pull {name}`")
        return path

    def unfetched(name: str) -> str:
        raise ModelError(f"{name} would be fetched from the hub; `plan` fetches nothing, so name a directory or file")

    resolved = resolve(
        config.model.path,
        null=_is_null(config),
        progress=lambda *_: None,
        pull_model=absent,
        fetch_snapshot=unfetched,
    )
    return _describe(config, resolved)


def _is_null(config: Config) -> bool:
    return config.model.model_impl == "null"


def _describe(config: Config, resolved: ResolvedModel) -> ModelDescription:
    return describe(
        resolved,
        served_model_name=config.model.served_model_name,
        max_model_len=config.model.max_model_len,
        sampling_defaults=config.model.generation_config == "auto",
        weights=not _is_null(config),
    )


def with_types(config: Config, model: ModelDescription) -> Config:
    """These options with the types that `auto` stands for on this machine.

    Raises ConfigError for weights that cannot be had: from this model, or without compiled kernels.
    """
    if _is_null(config):
        return config
    if config.model.device == "cuda":
        return _with_types_of_gpu(config)
    native = choose_level(config.model.cpu_kernels) is not None
    dtype: Any = config.model.dtype
    weights: Any = config.model.weights
    if not native:
        dtype = weights = _type_of_torch(dtype, weights)
    if dtype == "auto":
        dtype = weights if weights in FLOATS else "float16"
    if weights == "auto":
        weights = dtype
    if weights == "gguf" and model.format != "gguf":
        raise ConfigError(
            f"--weights gguf keeps the blocks of a .gguf file, and {model.path} is none; use --weights int8",
            param="weights",
        )
    return msgspec.structs.replace(
        config,
        model=msgspec.structs.replace(config.model, dtype=dtype, weights=weights),
        cache=msgspec.structs.replace(config.cache, kv_cache_dtype=type_of(config.cache.kv_cache_dtype, dtype)),
    )


def _with_types_of_gpu(config: Config) -> Config:
    """The same on a GPU, which has one type for all. Raises ConfigError for what cannot be computed there."""
    parallel, model, cache = config.parallel, config.model, config.cache
    if parallel.tensor * parallel.pipeline * parallel.data > 1:
        raise ConfigError("--device cuda is one GPU, for one replica; use --dp 1 --tp 1 --pp 1", param="device")
    if cache.kv_cache_tokens is None:
        raise ConfigError("--device cuda does not size the KV cache itself; give --kv-cache-tokens", param="device")
    given = {kind for kind in (model.dtype, model.weights, cache.kv_cache_dtype) if kind != "auto"}
    if len(given) > 1 or not given <= set(FLOATS):
        raise ConfigError(
            f"--device cuda has one type for weights and KV cache, {', '.join(FLOATS)}, and not {', '.join(given)};"
            " use --dtype alone",
            param="device",
        )
    dtype: Any = given.pop() if given else "bfloat16"
    return msgspec.structs.replace(
        config,
        model=msgspec.structs.replace(model, dtype=dtype, weights=dtype),
        cache=msgspec.structs.replace(cache, kv_cache_dtype=dtype),
    )


def _type_of_torch(dtype: str, weights: str) -> str:
    """The one type of a model in plain torch."""
    if weights not in ("auto", *FLOATS):
        raise ConfigError(
            f"--weights {weights} needs the compiled kernels, which are not there or not wanted (--cpu-kernels);"
            f" use --weights {' or '.join(FLOATS)}",
            param="weights",
        )
    if "auto" not in (dtype, weights) and dtype != weights:
        raise ConfigError(
            f"--weights {weights} and --dtype {dtype} differ; plain torch has one type for both", param="weights"
        )
    return next((kind for kind in (dtype, weights) if kind != "auto"), "float32")


def kernels(config: Config) -> str:
    """What computes the model, for options with types, and these. Raises ConfigError if it is not there."""
    if _is_null(config):
        return "none, the null model does without"
    types = f"weights {config.model.weights}, KV cache {config.cache.kv_cache_dtype}"
    if config.model.device == "cuda":
        return f"Triton, on a GPU; {types}"
    return f"{describe_choice(config.model.cpu_kernels)}; {types}"


def lacks_kernels(config: Config) -> bool:
    """Whether plain torch computes because compiled kernels are not there, although they may be used."""
    on_cpu = not _is_null(config) and config.model.device == "cpu"
    return on_cpu and config.model.cpu_kernels == "auto" and choose_level("auto") is None


def child_environment(topology: Topology, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a tree's processes. Libraries read it when they are imported."""
    return {
        SPIN_VARIABLE: SPIN_COUNT,
        **inherited,
        "SPT_NOENV": "1",  # process titles must not overwrite the environment, which others may read
        "OMP_NUM_THREADS": str(topology.threads),
        "TOKENIZERS_PARALLELISM": "false",
    }


def plan_tree(config: Config, model: ModelDescription, directory: str, on: str = "") -> Topology:
    """The topology of this model on this machine, which is the host `on`, or any. Starts nothing."""
    free_bytes, cores = psutil.virtual_memory().available, len(os.sched_getaffinity(0))
    return plan(config, model, directory=directory, free_bytes=free_bytes, cores=cores, on=on)
