"""From what a user calls a model to where it lies: a file, a directory, a pulled short name, a snapshot of the hub."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from actorlm.checkpoint.pull import CATALOGUE, Progress, pull
from actorlm.config import DEFAULT_MODEL
from actorlm.errors import ModelError

HUB_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
    "model*.safetensors",
)
"""What is fetched from the hub: no format that can hold code."""

HUB_ETAG_TIMEOUT_S = 5


class ResolvedModel(NamedTuple):
    """Where a model lies (`path` is "" for the built-in byte vocabulary), and the name it goes by if none is given."""

    path: str
    format: Literal["safetensors", "gguf", "bytes"]
    name: str


def resolve(
    model: str | None,
    *,
    null: bool,
    progress: Progress,
    pull_model: Callable[..., Path] = pull,
    fetch_snapshot: Callable[[str], str] | None = None,
) -> ResolvedModel:
    """Finds a model, fetching it if need be. Blocks; raises ModelError.

    None is the default model, or, with `null`, the built-in byte vocabulary, which needs no file. `pull_model` and
    `fetch_snapshot` are the two ways to the network.
    """
    if model is None and null:
        return ResolvedModel("", "bytes", "null")
    model = model or DEFAULT_MODEL
    path = Path(model).expanduser()
    if path.is_dir():
        return ResolvedModel(str(path.resolve()), "safetensors", path.resolve().name)
    if path.is_file():
        return _file(path)
    if model in CATALOGUE:
        return ResolvedModel(str(pull_model(model, progress=progress)), "gguf", model)
    if _looks_like_a_path(model):
        raise ModelError(f"there is no model at {model}: no such file or directory")
    return ResolvedModel((fetch_snapshot or hub_snapshot)(model), "safetensors", model)


def _file(path: Path) -> ResolvedModel:
    if path.suffix != ".gguf":
        raise ModelError(f"{path} is a file but no .gguf file; name a .gguf file, or the directory with config.json")
    return ResolvedModel(str(path.resolve()), "gguf", path.stem)


def _looks_like_a_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.endswith((".gguf", "/")) or model.count("/") > 1


def hub_snapshot(model: str) -> str:
    """The directory of a hub model's config, tokenizer and safetensors, from the hub's cache or fetched now."""
    unknown = f"{model} is neither a file, nor a directory, nor a known short name ({', '.join(CATALOGUE)})"
    if model.count("/") != 1:
        raise ModelError(f"{unknown}, nor the id of a hub model, which reads org/name")
    import huggingface_hub  # noqa: PLC0415 - only hub models need it

    try:
        return huggingface_hub.snapshot_download(model, allow_patterns=list(HUB_FILES), etag_timeout=HUB_ETAG_TIMEOUT_S)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{unknown}, and it could not be fetched from the Hugging Face hub: {reason}. Check the spelling and the "
            "network; for a gated model, log in with `hf auth login`; or name a model directory or .gguf file"
        ) from error
