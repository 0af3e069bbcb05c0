"""The Qwen2 family: as Llama, with biases for queries, keys and values and for nothing else."""

from actorlm.checkpoint.description import ModelDescription
from actorlm.layers.arena import Arena
from actorlm.layers.attention import Attention
from actorlm.layers.decoder_layer import DecoderLayer
from actorlm.layers.mlp import GatedMLP
from actorlm.models.decoder import Decoder
from actorlm.models.llama import NAMES as LLAMA
from actorlm.partition import Stage

NAMES = LLAMA._replace(in_halves={"safetensors": ("query", "key"), "gguf": ("query", "key")})


def build(model: ModelDescription, arena: Arena, stage: Stage) -> Decoder:
    """A stage of a model of the family."""
    return Decoder(model, arena, stage, [_layer(model, arena) for _ in stage.layers], NAMES)


def _layer(model: ModelDescription, arena: Arena) -> DecoderLayer:
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
