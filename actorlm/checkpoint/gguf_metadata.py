"""Describes a GGUF file from its metadata and the names and shapes of its tensors.

Whatever would change the arithmetic and is not implemented is refused by name.
"""

import math
from pathlib import Path
from typing import Annotated

import msgspec

from actorlm.checkpoint.description import ModelDescription, RopeScaling
from actorlm.checkpoint.gguf import GgufFile
from actorlm.checkpoint.typed_json import convert
from actorlm.errors import ModelError

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""What transformers calls each. Files of Mistral's are for `llama`."""
ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
BIASED_TOGETHER = {"llama": ATTENTION, "qwen2": ATTENTION[:3], "qwen3": ATTENTION}
"""Matrices that have biases all or none."""
ROPE_FACTORS = "rope_freqs.weight"

Count = Annotated[int, msgspec.Meta(ge=1)]


class _Keys(msgspec.Struct, frozen=True):
    """An architecture's keys, named as they are in the file after `llama.` or another name."""

    context_length: Count
    embedding_length: Count
    block_count: Count
    feed_forward_length: Count
    num_heads: Count = msgspec.field(name="attention.head_count")
    rms_norm_eps: float = msgspec.field(name="attention.layer_norm_rms_epsilon")
    num_kv_heads: Count | None = msgspec.field(name="attention.head_count_kv", default=None)
    key_length: Count | None = msgspec.field(name="attention.key_length", default=None)
    value_length: Count | None = msgspec.field(name="attention.value_length", default=None)
    rope_dimensions: Count | None = msgspec.field(name="rope.dimension_count", default=None)
    rope_theta: float = msgspec.field(name="rope.freq_base", default=10000.0)
    rope_scaling: str = msgspec.field(name="rope.scaling.type", default="none")
    expert_count: int = 0
    sliding_window: int = msgspec.field(name="attention.sliding_window", default=0)


class _Tokenizer(msgspec.Struct, frozen=True):
    """The `tokenizer.ggml.*` keys that say where generation ends. An end of turn (eot) or message (eom) also does."""

    tokens: list[str]
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    eot_token_id: int | None = None
    eom_token_id: int | None = None

    @property
    def end_ids(self) -> tuple[int, ...]:
        ids = (self.eos_token_id, self.eot_token_id, self.eom_token_id)
        return tuple(dict.fromkeys(i for i in ids if i is not None))


def describe_gguf(path: Path, name: str) -> ModelDescription:
    """The model in the file. Raises ModelError for another architecture, and for what is missing or not supported."""
    with GgufFile(path) as file:
        architecture = file.metadata.get("general.architecture")
        if architecture not in ARCHITECTURES:
            raise ModelError(
                f"{path} is for the architecture {architecture}, which is not supported; "
                f"supported: {', '.join(ARCHITECTURES)}"
            )
        keys = convert(file.section(f"{architecture}."), _Keys, f"{path}, {architecture}.*")
        tokenizer = convert(file.section("tokenizer.ggml."), _Tokenizer, f"{path}, tokenizer.ggml.*")
        head_dim = keys.key_length or keys.embedding_length // keys.num_heads
        _check_supported(file, architecture, keys, head_dim)
        return ModelDescription(
            path=str(path),
            format="gguf",
            name=name,
            architecture=ARCHITECTURES[architecture],
            vocab_size=_vocab_size(file, len(tokenizer.tokens)),
            max_model_len=keys.context_length,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_ids=tokenizer.end_ids,
            hidden_size=keys.embedding_length,
            intermediate_size=keys.feed_forward_length,
            num_layers=keys.block_count,
            num_heads=keys.num_heads,
            num_kv_heads=keys.num_kv_heads or keys.num_heads,
            head_dim=head_dim,
            rms_norm_eps=keys.rms_norm_eps,
            rope_theta=keys.rope_theta,
            rope_scaling=_rope_scaling(file, keys.rope_theta, head_dim),
            tie_word_embeddings="output.weight" not in file.tensors,
            attention_bias=_bias(file, BIASED_TOGETHER[architecture]),
            mlp_bias=_bias(file, ("ffn_gate", "ffn_up", "ffn_down")),
            sliding_window=keys.sliding_window or None,
            num_parameters=sum(math.prod(t.shape) for t in file.tensors.values() if t.name != ROPE_FACTORS),
            weight_bytes=sum(t.size for t in file.tensors.values() if t.name != ROPE_FACTORS),
        )


def _vocab_size(file: GgufFile, tokens: int) -> int:
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path} has no tensor token_embd.weight")
    rows = file.tensors["token_embd.weight"].shape[0]
    if tokens > rows:
        raise ModelError(f"{file.path} is damaged: it has {tokens} tokens, but embeddings of {rows}")
    return rows


def _check_supported(file: GgufFile, architecture: str, keys: _Keys, head_dim: int) -> None:
    unsupported = {
        "attention.value_length": (keys.value_length or head_dim, head_dim),
        "rope.dimension_count": (keys.rope_dimensions or head_dim, head_dim),
        "rope.scaling.type": (keys.rope_scaling, "none"),
        "expert_count": (keys.expert_count, 0),
    }
    for key, (value, only) in unsupported.items():
        if value != only:
            raise ModelError(
                f"{file.path}: {architecture}.{key} is {value}, which is not supported; supported here: {only}"
            )
    kv_heads = keys.num_kv_heads or keys.num_heads
    if keys.num_heads % kv_heads:
        raise ModelError(f"{file.path}: {keys.num_heads} attention heads are no multiple of {kv_heads} key-value heads")


def _bias(file: GgufFile, names: tuple[str, ...]) -> bool:
    present = [f"blk.0.{name}.bias" in file.tensors for name in names]
    if any(present) and not all(present):
        raise ModelError(
            f"{file.path} has biases for some of {', '.join(names)} and not for others, which is not supported"
        )
    return all(present)


def _rope_scaling(file: GgufFile, theta: float, head_dim: int) -> RopeScaling | None:
    """Llama 3's scaling, which GGUF keeps as one factor for each frequency and not as its four parameters.

    All Llama 3 models share three of the four, and the fourth is the largest factor: what they produce is compared with
    the file, and anything else is refused.
    """
    if ROPE_FACTORS not in file.tensors:
        return None
    factors = file.read(ROPE_FACTORS).tolist()
    scaling = RopeScaling(
        factor=max(factors), low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    )
    expected = [_llama3_factor(scaling, theta ** (2 * i / head_dim) * 2 * math.pi) for i in range(head_dim // 2)]
    if len(factors) != len(expected) or not all(map(_close, factors, expected)):
        raise ModelError(
            f"{file.path}: the frequency factors in {ROPE_FACTORS} are not Llama 3's; others are not supported"
        )
    return scaling


def _llama3_factor(scaling: RopeScaling, wavelength: float) -> float:
    turns = scaling.original_max_position_embeddings / wavelength
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
    return 1 / ((1 - smooth) / scaling.factor + smooth)


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-4)
