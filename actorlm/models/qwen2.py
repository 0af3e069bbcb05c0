"""The Qwen2 family: as Llama, with biases for queries, keys and values and for nothing else."""

from actorlm.checkpoint.description import ModelDescription
from actorlm.layers.arena import Arena
from actorlm.layers.attention import Attention
from actorlm.layers.decoder_layer import DecoderLayer
from actorlm.layers.mlp import GatedMLP
from actorlm.models.llama import NAMES as LLAMA

NAMES = LLAMA._replace(in_halves={"safetensors": ("query", "key"), "gguf": ("query", "key")})


def layer(model: ModelDescription, arena: Arena) -> DecoderLayer:
    """One of the model's layers."""
    size = model.hidden_size
    attention = Attention(
        size,
        model.num_heads,
        model.num_kv_heads,
        model.head_dim,
        qkv_bias=True,
        output_bias=False,
        arena=arena,
    )
    mlp = GatedMLP(size, model.intermediate_size, bias=False, arena=arena)
    return DecoderLayer(size, model.rms_norm_eps, attention, mlp, arena)
