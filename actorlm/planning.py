"""What every start begins with: the model that the options name, and the plan for this machine. Starts nothing."""

import os
from collections.abc import Mapping
from pathlib import Path

import psutil

from actorlm.checkpoint.describe import describe
from actorlm.checkpoint.description import ModelDescription
from actorlm.checkpoint.pull import Progress, pulled_path
from actorlm.checkpoint.resolve import ResolvedModel, resolve
from actorlm.config import Config
from actorlm.errors import ModelError
from actorlm.kernels.native import choose_level, describe_choice
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


def kernels(config: Config) -> str:
    """What computes the model. Raises ConfigError if it is not there."""
    return "none, the null model does without" if _is_null(config) else describe_choice(config.model.cpu_kernels)


def lacks_kernels(config: Config) -> bool:
    """Whether plain torch computes because compiled kernels are not there, although they may be used."""
    return not _is_null(config) and config.model.cpu_kernels == "auto" and choose_level("auto") is None


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
