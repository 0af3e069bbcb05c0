"""Describes a directory in Hugging Face's layout: config.json, generation_config.json, safetensors headers.

Reads what transformers' configurations mean, in their older form (`rope_scaling`, `rope_theta`) and in that of
transformers 5 (`rope_parameters`). Whatever would change the arithmetic and is not implemented is refused by name.
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from actorlm.checkpoint.description import ModelDescription, RopeScaling, SamplingDefaults
from actorlm.checkpoint.safetensors import check_weights
from actorlm.checkpoint.typed_json import convert, read_json
from actorlm.errors import ModelError

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {"num_key_value_heads": 8, "sliding_window": 4096},
    "Qwen2ForCausalLM": {"num_key_value_heads": 32, "sliding_window": 4096},
    "Qwen3ForCausalLM": {"num_key_value_heads": 32, "sliding_window": 4096, "head_dim": 128},
}
"""What each architecture means by a key that config.json lacks, where it is not what `_Config` says."""
ROPE_TYPES = ("default", "llama3")

Count = Annotated[int, msgspec.Meta(ge=1)]


class _Config(msgspec.Struct, frozen=True):
    vocab_size: Count
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    max_position_embeddings: Count
    rms_norm_eps: float
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    hidden_act: str = "silu"
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: Count | None = None
    use_sliding_window: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    quantization_config: dict[str, Any] | None = None


class _GenerationConfig(SamplingDefaults, frozen=True):
    eos_token_id: int | list[int] | None = None


def describe_directory(directory: Path, name: str, *, weights: bool) -> ModelDescription:
    """The model in `directory`. With `weights` its safetensors files are verified and counted."""
    path = directory / "config.json"
    if not path.exists():
        raise ModelError(_no_config(directory))
    raw = read_json(path, dict[str, Any])
    architecture = _architecture(path, raw)
    config = convert({**ARCHITECTURES[architecture], **raw}, _Config, str(path))
    _check_supported(path, config)
    rope_theta, rope_scaling = _rope(path, config)
    found, generation = check_weights(directory) if weights else None, _generation_config(directory)
    return ModelDescription(
        path=str(directory),
        format="safetensors",
        name=name,
        architecture=architecture,
        vocab_size=config.vocab_size,
        max_model_len=config.max_position_embeddings,
        bos_token_id=config.bos_token_id,
        eos_token_ids=_eos_token_ids(generation, config),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=config.head_dim or config.hidden_size // config.num_attention_heads,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_word_embeddings=config.tie_word_embeddings,
        attention_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        sliding_window=_sliding_window(architecture, config),
        num_parameters=found.num_parameters if found else 0,
        weight_bytes=found.num_bytes if found else 0,
        sampling_defaults=_sampling_defaults(generation),
    )


def _architecture(path: Path, raw: dict[str, Any]) -> str:
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ModelError(f"{path} has no key `architectures`; supported: {', '.join(ARCHITECTURES)}")
    if architectures[0] not in ARCHITECTURES:
        raise ModelError(
            f"{path} is for the architecture {architectures[0]}, which is not supported; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    return str(architectures[0])


def _check_supported(path: Path, config: _Config) -> None:
    if config.quantization_config is not None:
        method = config.quantization_config.get("quant_method", "unknown")
        raise ModelError(
            f"{path}: weights quantised with {method} are not supported; take the unquantised model or a GGUF"
        )
    if config.hidden_act != "silu":
        raise ModelError(f"{path}: hidden_act {config.hidden_act} is not supported; supported: silu")
    if config.partial_rotary_factor not in (None, 1.0):
        raise ModelError(
            f"{path}: partial_rotary_factor {config.partial_rotary_factor} is not supported; supported: 1.0"
        )
    kv_heads = config.num_key_value_heads or config.num_attention_heads
    if config.num_attention_heads % kv_heads:
        raise ModelError(
            f"{path}: num_attention_heads {config.num_attention_heads} is no multiple of num_key_value_heads {kv_heads}"
        )


def _sliding_window(architecture: str, config: _Config) -> int | None:
    """Mistral's models have the window that they name; Qwen's name one and mostly do not use it."""
    used = config.use_sliding_window or architecture == "MistralForCausalLM"
    return config.sliding_window if used else None


def _rope(path: Path, config: _Config) -> tuple[float, RopeScaling | None]:
    parameters = config.rope_parameters or config.rope_scaling or {}
    key = "rope_parameters" if config.rope_parameters else "rope_scaling"
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise ModelError(
            f"{path}: {key} has the type {kind}, which is not supported; supported: {', '.join(ROPE_TYPES)}"
        )
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"{path}: {key}.partial_rotary_factor is not supported; supported: 1.0")
    theta = parameters.get("rope_theta", config.rope_theta)
    if theta is not None and not isinstance(theta, int | float):
        raise ModelError(f"{path}: {key}.rope_theta is {theta!r}; it must be a number")
    scaling = convert(parameters, RopeScaling, f"{path}, {key}") if kind == "llama3" else None
    return float(theta or 10000.0), scaling


def _generation_config(directory: Path) -> _GenerationConfig:
    path = directory / "generation_config.json"
    return read_json(path, _GenerationConfig) if path.exists() else _GenerationConfig()


def _sampling_defaults(generation: _GenerationConfig) -> SamplingDefaults:
    names = SamplingDefaults.__struct_fields__
    return SamplingDefaults(**{name: getattr(generation, name) for name in names})


def _eos_token_ids(generation: _GenerationConfig, config: _Config) -> tuple[int, ...]:
    """As transformers' `generate`: those of generation_config.json if it has any, else those of config.json."""
    ids = generation.eos_token_id
    if ids is None:
        ids = config.eos_token_id
    return tuple(ids) if isinstance(ids, list) else () if ids is None else (ids,)


def _no_config(directory: Path) -> str:
    inside = sorted(directory.glob("*.gguf"))
    hint = f"; to serve the GGUF file in it, name the file: {inside[0]}" if inside else ""
    return f"{directory} is no model directory: it has no config.json{hint}"
