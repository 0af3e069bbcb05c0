"""What all hosts of a tree must have alike, so that each plans the same tree and computes the same tokens."""

from collections.abc import Mapping
from typing import Any

import msgspec

from actorlm import __version__
from actorlm.checkpoint.description import ModelDescription
from actorlm.checkpoint.digest import digests
from actorlm.config import Config

SECTIONS = ("parallel", "cache", "scheduler", "balancing", "supervision", "sockets", "hosts", "pins")
HTTP = ("frontends", "detokenizers")
"""Of the frontends' options those that decide on the plan; the others may be each host's own."""
OWN = frozenset(
    {"parallel.threads", "supervision.log_level", "supervision.drain_timeout_s", "supervision.drain_delay_s"}
)
MODEL = ("dtype", "weights", "device", "model_impl", "null_step_ms", "generation_config")


def facts(config: Config, model: ModelDescription) -> dict[str, str]:
    """What is compared, by the field's name. Raises OSError if the model's files cannot be read."""
    options = msgspec.to_builtins(config)
    wanted = {section: options[section] for section in SECTIONS}
    wanted["http"] = {name: options["http"][name] for name in HTTP}
    wanted["model"] = {name: options["model"][name] for name in MODEL} | {
        "architecture": model.architecture,
        "served_model_name": model.name,
        "max_model_len": model.max_model_len,
        "vocab_size": model.vocab_size,
        "file": digests(model),
    }
    return {"version": __version__} | {key: value for key, value in _flat("", wanted) if key not in OWN}


def _flat(prefix: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict) and value:
        return [pair for key, inner in value.items() for pair in _flat(f"{prefix}.{key}" if prefix else key, inner)]
    return [(prefix, str(value))]


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """The first field that differs, with both values; empty if none does."""
    for field in (*ours, *theirs):
        mine, other = ours.get(field, "missing"), theirs.get(field, "missing")
        if mine != other:
            return f"{field} is {other} there and {mine} on the lead"
    return ""
