"""The Qwen3 family: as Llama, with RMSNorm of each query and key before they are rotated."""

from actorlm.checkpoint.description import ModelDescription
from actorlm.layers.arena import Arena
from actorlm.layers.attention import Attention, QueryKeyNorms
from actorlm.layers.decoder_layer import DecoderLayer
from actorlm.layers.mlp import GatedMLP
from actorlm.models.llama import NAMES as LLAMA

NORMS = {
    "query_norm": {"safetensors": "self_attn.q_norm", "gguf": "attn_q_norm"},
    "key_norm": {"safetensors": "self_attn.k_norm", "gguf": "attn_k_norm"},
}
IN_HALVES = ("query", "key", "query_norm", "key_norm")
NAMES = LLAMA._replace(in_layer={**LLAMA.in_layer, **NORMS}, in_halves={"safetensors": IN_HALVES, "gguf": IN_HALVES})


def layer(model: ModelDescription, arena: Arena) -> DecoderLayer:
    """One of the model's layers."""
    size = model.hidden_size
    norms = QueryKeyNorms(model.head_dim, model.rms_norm_eps, arena)
    attention = Attention(
        size,
        model.num_heads,
        model.num_kv_heads,
        model.head_dim,
        qkv_bias=model.attention_bias,
        output_bias=model.attention_bias,
        norms=norms,
        arena=arena,
    )
    mlp = GatedMLP(size, model.intermediate_size, bias=False, arena=arena)
    return DecoderLayer(size, model.rms_norm_eps, attention, mlp, arena)
