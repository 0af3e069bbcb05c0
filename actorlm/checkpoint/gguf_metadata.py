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

ARCHITECTURES = {"llama": "LlamaForCausalLM"}
ROPE_FACTORS = "rope_freqs.weight"

Count = Annotated[int, msgspec.Meta(ge=1)]


class _Llama(msgspec.Struct, frozen=True):
    """The `llama.*` keys, named as they are in the file."""

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
        llama = convert(file.section(f"{architecture}."), _Llama, f"{path}, {architecture}.*")
        tokenizer = convert(file.section("tokenizer.ggml."), _Tokenizer, f"{path}, tokenizer.ggml.*")
        head_dim = llama.key_length or llama.embedding_length // llama.num_heads
        _check_supported(file, llama, head_dim)
        return ModelDescription(
            path=str(path),
            format="gguf",
            name=name,
            architecture=ARCHITECTURES[architecture],
            vocab_size=_vocab_size(file, len(tokenizer.tokens)),
            max_model_len=llama.context_length,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_ids=tokenizer.end_ids,
            hidden_size=llama.embedding_length,
            intermediate_size=llama.feed_forward_length,
            num_layers=llama.block_count,
            num_heads=llama.num_heads,
            num_kv_heads=llama.num_kv_heads or llama.num_heads,
            head_dim=head_dim,
            rms_norm_eps=llama.rms_norm_eps,
            rope_theta=llama.rope_theta,
            rope_scaling=_rope_scaling(file, llama.rope_theta, head_dim),
            tie_word_embeddings="output.weight" not in file.tensors,
            attention_bias=_bias(file, ("attn_q", "attn_k", "attn_v", "attn_output")),
            mlp_bias=_bias(file, ("ffn_gate", "ffn_up", "ffn_down")),
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


def _check_supported(file: GgufFile, llama: _Llama, head_dim: int) -> None:
    unsupported = {
        "attention.value_length": (llama.value_length or head_dim, head_dim),
        "rope.dimension_count": (llama.rope_dimensions or head_dim, head_dim),
        "rope.scaling.type": (llama.rope_scaling, "none"),
        "expert_count": (llama.expert_count, 0),
        "attention.sliding_window": (llama.sliding_window, 0),
    }
    for key, (value, only) in unsupported.items():
        if value != only:
            raise ModelError(f"{file.path}: llama.{key} is {value}, which is not supported; supported here: {only}")
    kv_heads = llama.num_kv_heads or llama.num_heads
    if llama.num_heads % kv_heads:
        raise ModelError(
            f"{file.path}: {llama.num_heads} attention heads are no multiple of {kv_heads} key-value heads"
        )


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
