"""Which options an offline model takes: those of the tree that say something about one replica.

`LLM(...)` and the commands `generate` and `bench offline` take the same ones, under the same names; `LLM` also those
that say where several ranks are.
"""

import difflib
from collections.abc import Mapping
from typing import Any

from actorlm.config import Config
from actorlm.errors import ConfigError
from actorlm.options import OPTIONS, merge

_OF_A_REPLICA = {"model", "cache", "scheduler"}
_OF_A_SERVICE = {"served_model_name", "max_waiting", "max_waiting_tokens", "scheduling_policy"}

OFFLINE_OPTIONS = tuple(
    option
    for option in OPTIONS
    if (option.section in _OF_A_REPLICA and option.field not in _OF_A_SERVICE) or option.field == "threads"
)

_OF_ALL_RANKS = {"tensor", "pipeline", "pipeline_layers", "executor"}

LLM_OPTIONS = (*OFFLINE_OPTIONS, *(option for option in OPTIONS if option.field in _OF_ALL_RANKS))
"""Those of `LLM(...)`, which may run on several ranks of a launcher."""


def offline_config(model: str | None, options: Mapping[str, Any]) -> Config:
    """The Config of a model and options by name. Raises ConfigError for a name that is none, with the nearest."""
    known = {option.parameter for option in LLM_OPTIONS} - {"model"}
    for name in options:
        if name not in known:
            raise ConfigError(f"{name} is no option of an LLM{_hint(name, known)}", param=name)
    return merge({**options, "model": model}, {}, None)


def check_offline(config: Config) -> None:
    """Raises ConfigError for options of a tree that one replica in one process cannot follow."""
    if config.parallel.data > 1:
        raise ConfigError(f"--dp {config.parallel.data}: offline there is one replica; `actorlm up` runs several")
    parallel = config.parallel
    for option, ranks in (("tp", parallel.tensor), ("pp", parallel.pipeline)):
        if ranks > 1 and parallel.executor != "external":
            raise ConfigError(
                f"{option} is {ranks}, and a process has one worker: start one for each rank with torchrun and pass"
                f' executor="external"; `actorlm up` starts them itself',
                param="tensor" if option == "tp" else "pipeline",
            )
    if parallel.executor in ("broadcast", "ray"):
        raise ConfigError(
            f"--executor {parallel.executor}: offline the worker is in the caller's process; leave it auto"
        )


def _hint(name: str, known: set[str]) -> str:
    if name in {option.parameter for option in OPTIONS}:
        return ": it concerns what `actorlm up` starts"
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else f"; these are: {', '.join(sorted(known))}"
