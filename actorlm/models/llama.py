"""The Llama family: RMSNorm before attention and before a gated MLP, rotary positions, grouped heads."""

from actorlm.checkpoint.description import ModelDescription
from actorlm.layers.arena import Arena
from actorlm.layers.attention import Attention
from actorlm.layers.decoder_layer import DecoderLayer
from actorlm.layers.mlp import GatedMLP
from actorlm.models.decoder import Names

NAMES = Names(
    top={
        "embedding": {"safetensors": "model.embed_tokens", "gguf": "token_embd"},
        "norm": {"safetensors": "model.norm", "gguf": "output_norm"},
        "head": {"safetensors": "lm_head", "gguf": "output"},
    },
    layer={"safetensors": "model.layers.{}.", "gguf": "blk.{}."},
    in_layer={
        "attention_norm": {"safetensors": "input_layernorm", "gguf": "attn_norm"},
        "query": {"safetensors": "self_attn.q_proj", "gguf": "attn_q"},
        "key": {"safetensors": "self_attn.k_proj", "gguf": "attn_k"},
        "value": {"safetensors": "self_attn.v_proj", "gguf": "attn_v"},
        "output": {"safetensors": "self_attn.o_proj", "gguf": "attn_output"},
        "mlp_norm": {"safetensors": "post_attention_layernorm", "gguf": "ffn_norm"},
        "gate": {"safetensors": "mlp.gate_proj", "gguf": "ffn_gate"},
        "up": {"safetensors": "mlp.up_proj", "gguf": "ffn_up"},
        "down": {"safetensors": "mlp.down_proj", "gguf": "ffn_down"},
    },
    in_halves={"safetensors": ("query", "key"), "gguf": ()},
)


def layer(model: ModelDescription, arena: Arena) -> DecoderLayer:
    """One of the model's layers."""
    size = model.hidden_size
    attention = Attention(
        size,
        model.num_heads,
        model.num_kv_heads,
        model.head_dim,
        qkv_bias=model.attention_bias,
        output_bias=model.attention_bias,
        arena=arena,
    )
    mlp = GatedMLP(size, model.intermediate_size, bias=model.mlp_bias, arena=arena)
    return DecoderLayer(size, model.rms_norm_eps, attention, mlp, arena)
