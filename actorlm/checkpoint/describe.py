"""From a model on disk to its ModelDescription. Fast, torch-free: every command starts with it."""

from pathlib import Path

import msgspec

from actorlm.checkpoint.config_json import describe_directory
from actorlm.checkpoint.description import ModelDescription, SamplingDefaults
from actorlm.checkpoint.gguf_metadata import describe_gguf
from actorlm.checkpoint.resolve import ResolvedModel
from actorlm.errors import ModelError

END_OF_TEXT, MESSAGE_START, MESSAGE_END = 256, 257, 258

BYTES = ModelDescription(
    path="",
    format="bytes",
    name="null",
    architecture="null",
    vocab_size=259,
    max_model_len=32_768,
    bos_token_id=None,
    eos_token_ids=(END_OF_TEXT, MESSAGE_END),
)
"""The built-in byte vocabulary: ids 0 to 255 are bytes, then three special tokens."""


def describe(
    resolved: ResolvedModel,
    *,
    served_model_name: str | None = None,
    max_model_len: int | None = None,
    sampling_defaults: bool = True,
    weights: bool = True,
) -> ModelDescription:
    """The model that `resolved` points to, under the name and with the length that the options ask for.

    Without `sampling_defaults` those that the model brings are dropped. Without `weights` (the null model needs none)
    a directory may lack its safetensors files. Raises ModelError for whatever is missing, damaged or not supported, for
    a `max_model_len` above the model's own, and for a sliding window that is shorter than the length.
    """
    found = _describe(resolved, weights=weights)
    for token in (*found.eos_token_ids, *(() if found.bos_token_id is None else (found.bos_token_id,))):
        if not 0 <= token < found.vocab_size:
            raise ModelError(
                f"{found.path} is damaged: its special token {token} is not among its {found.vocab_size} ids"
            )
    if max_model_len is not None and max_model_len > found.max_model_len:
        raise ModelError(
            f"--max-model-len is {max_model_len}, but {found.name} is made for at most {found.max_model_len} tokens"
        )
    length = max_model_len or found.max_model_len
    if found.sliding_window is not None and found.sliding_window < length:
        raise ModelError(
            f"{found.path}: sliding_window is {found.sliding_window}, which would change the attention of requests of "
            f"up to {length} tokens and is not supported; serve shorter ones, with --max-model-len "
            f"{found.sliding_window}, or a model with a window that is no shorter"
        )
    return msgspec.structs.replace(
        found,
        name=served_model_name or found.name,
        max_model_len=length,
        sampling_defaults=found.sampling_defaults if sampling_defaults else SamplingDefaults(),
    )


def _describe(resolved: ResolvedModel, *, weights: bool) -> ModelDescription:
    match resolved.format:
        case "bytes":
            return BYTES
        case "gguf":
            return describe_gguf(Path(resolved.path), resolved.name)
        case "safetensors":
            return describe_directory(Path(resolved.path), resolved.name, weights=weights)
