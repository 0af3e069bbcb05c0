"""The Llama family: RMSNorm before attention and before a gated MLP, rotary positions, grouped heads.

Legend: T tokens of the step, E hidden size.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from actorlm.checkpoint.description import ModelDescription
from actorlm.kernels.layer_cache import LayerCache
from actorlm.kernels.native import Native
from actorlm.layers.activations import Activations
from actorlm.layers.arena import Arena
from actorlm.layers.attention import Attention, LayerInputs
from actorlm.layers.mlp import GatedMLP
from actorlm.layers.rms_norm import RMSNorm
from actorlm.layers.weight import Weight
from actorlm.models.decoder import Decoder, Names
from actorlm.partition import Stage

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


class Block:
    """One layer."""

    def __init__(self, model: ModelDescription, arena: Arena) -> None:
        size, eps = model.hidden_size, model.rms_norm_eps
        self._is_shared = arena.group.size > 1
        self.attention_norm = RMSNorm("attention_norm", size, eps, arena)
        self.attention = Attention(
            size, model.num_heads, model.num_kv_heads, model.head_dim, bias=model.attention_bias, arena=arena
        )
        self.mlp_norm = RMSNorm("mlp_norm", size, eps, arena)
        self.mlp = GatedMLP(size, model.intermediate_size, bias=model.mlp_bias, arena=arena)

    def buffers(self, num_tokens: int, native: Native | None) -> Activations:
        """For this layer and all of its shape."""
        heads, gates = self.attention.heads(num_tokens), self.mlp.gates(num_tokens)
        tokens_TE = torch.empty(num_tokens, len(self.attention_norm.weight_E), dtype=heads.flat_TX.dtype)
        part_TE = tokens_TE if self._is_shared else None
        if native is None:
            return Activations(None, heads, None, gates, part_TE)
        attended_TX = torch.empty(num_tokens, heads.q_TnH[0].numel())
        return Activations(torch.empty_like(tokens_TE), heads, attended_TX, gates, part_TE)

    def update(self, x_TE: Tensor, inputs: LayerInputs, cache: LayerCache, work: Activations) -> None:
        """Adds to `x` what the layer computes, in place."""
        self.attention.add_to(x_TE, self.attention_norm(x_TE, work.normed_TE), work, inputs, cache)
        self.mlp.add_to(x_TE, self.mlp_norm(x_TE, work.normed_TE), work)

    def parameters(self) -> Iterator[Weight]:
        """Those of everything in the layer."""
        for part in (self.attention_norm, self.attention, self.mlp_norm, self.mlp):
            yield from part.parameters()


def build(model: ModelDescription, arena: Arena, stage: Stage) -> Decoder:
    """A stage of a model of the family."""
    return Decoder(model, arena, stage, [Block(model, arena) for _ in stage.layers], NAMES)
