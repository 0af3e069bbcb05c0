"""What the control plane knows of a model: numbers and paths, no tensors, no torch."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from actorlm.sampling import MAX_REPETITION_PENALTY, MIN_REPETITION_PENALTY


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Llama 3's scaling of rotary frequencies (`rope_type: llama3` in config.json)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's authors recommend for requests that say nothing else; None where they say nothing."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)] | None = None


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A model on disk, as `describe` found it.

    `path` is a directory with safetensors, a .gguf file, or "" for the built-in byte vocabulary of the null model.
    Field names and meanings are those of transformers' configurations. `eos_token_ids` are all ids that end a
    generation. A token attends to the last `sliding_window` ones and itself among them, or to all.
    """

    path: str
    format: Literal["safetensors", "gguf", "bytes"]
    name: str
    architecture: str
    vocab_size: int
    max_model_len: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    hidden_size: int = 0
    intermediate_size: int = 0
    num_layers: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    num_parameters: int = 0
    weight_bytes: int = 0
    sampling_defaults: SamplingDefaults = SamplingDefaults()

    @property
    def kv_vectors_per_token(self) -> int:
        """Keys and values of one token in all layers, each of `head_dim` numbers."""
        return 2 * self.num_layers * self.num_kv_heads
