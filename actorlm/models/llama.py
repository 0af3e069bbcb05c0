"""The Llama family: RMSNorm before attention and before a gated MLP, rotary positions, grouped heads.

Legend: T tokens of the step, S sampled rows, E hidden size, V vocabulary.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from actorlm.checkpoint.description import ModelDescription
from actorlm.kernels.layer_cache import LayerCache
from actorlm.kernels.linear import PackedRows
from actorlm.kernels.native import Native
from actorlm.kernels.pages import Arena
from actorlm.layers.activations import Activations
from actorlm.layers.attention import Attention, LayerInputs, StepInputs
from actorlm.layers.embedding import Embedding
from actorlm.layers.mlp import GatedMLP
from actorlm.layers.rms_norm import RMSNorm
from actorlm.layers.rotary import Rotary
from actorlm.models.stack import Stack
from actorlm.models.weights import Parameter

TOP = {
    "embedding": {"safetensors": "model.embed_tokens", "gguf": "token_embd"},
    "norm": {"safetensors": "model.norm", "gguf": "output_norm"},
    "head": {"safetensors": "lm_head", "gguf": "output"},
}
LAYER = {"safetensors": "model.layers.{}.", "gguf": "blk.{}."}
IN_LAYER = {
    "attention_norm": {"safetensors": "input_layernorm", "gguf": "attn_norm"},
    "query": {"safetensors": "self_attn.q_proj", "gguf": "attn_q"},
    "key": {"safetensors": "self_attn.k_proj", "gguf": "attn_k"},
    "value": {"safetensors": "self_attn.v_proj", "gguf": "attn_v"},
    "output": {"safetensors": "self_attn.o_proj", "gguf": "attn_output"},
    "mlp_norm": {"safetensors": "post_attention_layernorm", "gguf": "ffn_norm"},
    "gate": {"safetensors": "mlp.gate_proj", "gguf": "ffn_gate"},
    "up": {"safetensors": "mlp.up_proj", "gguf": "ffn_up"},
    "down": {"safetensors": "mlp.down_proj", "gguf": "ffn_down"},
}
IN_HALVES = {"safetensors": ("query", "key"), "gguf": ()}
"""Matrices whose heads a format stores for rotation of halves; others, as we need them, for rotation of neighbours."""

Format = Literal["safetensors", "gguf"]


class Block:
    """One layer."""

    def __init__(self, model: ModelDescription, arena: Arena) -> None:
        size, eps = model.hidden_size, model.rms_norm_eps
        self.attention_norm = RMSNorm("attention_norm", size, eps, arena)
        self.attention = Attention(
            size, model.num_heads, model.num_kv_heads, model.head_dim, bias=model.attention_bias, arena=arena
        )
        self.mlp_norm = RMSNorm("mlp_norm", size, eps, arena)
        self.mlp = GatedMLP(size, model.intermediate_size, bias=model.mlp_bias, arena=arena)

    def buffers(self, num_tokens: int, native: Native | None) -> Activations:
        """For this layer and all of its shape."""
        heads, gates = self.attention.heads(num_tokens), self.mlp.gates(num_tokens)
        if native is None:
            return Activations(None, heads, None, gates)
        normed_TE = torch.empty(num_tokens, len(self.attention_norm.weight_E))
        return Activations(normed_TE, heads, torch.empty(num_tokens, heads.q_TnH[0].numel()), gates)

    def update(self, x_TE: Tensor, inputs: LayerInputs, cache: LayerCache, work: Activations) -> None:
        """Adds to `x` what the layer computes, in place."""
        self.attention.add_to(x_TE, self.attention_norm(x_TE, work.normed_TE), work, inputs, cache)
        self.mlp.add_to(x_TE, self.mlp_norm(x_TE, work.normed_TE), work.gates)

    def parameters(self) -> Iterator[tuple[str, Tensor | PackedRows]]:
        """(name, the tensor to fill) of everything in the layer."""
        for part in (self.attention_norm, self.attention, self.mlp_norm, self.mlp):
            yield from part.parameters()


class Llama:
    """A model of the family; its weights are zeros until `parameters` are filled."""

    def __init__(self, model: ModelDescription, dtype: torch.dtype, native: Native | None = None) -> None:
        arena = Arena(dtype, native)
        self._head_dim = model.head_dim
        self.embedding = Embedding("embedding", model.vocab_size, model.hidden_size, arena)
        self.rotary = Rotary(model.head_dim, model.rope_theta, model.rope_scaling)
        self.blocks = [Block(model, arena) for _ in range(model.num_layers)]
        self.norm = RMSNorm("norm", model.hidden_size, model.rms_norm_eps, arena)
        self._stack = Stack(self.blocks, native)
        self.head = self.embedding
        if not model.tie_word_embeddings:
            self.head = Embedding("head", model.vocab_size, model.hidden_size, arena)

    def parameters(self, form: Format) -> Iterator[Parameter]:
        """What to read from a checkpoint of this format, and where to put it."""
        tied = self.head is self.embedding
        tops: list[Embedding | RMSNorm] = (
            [self.embedding, self.norm] if tied else [self.embedding, self.norm, self.head]
        )
        for top in tops:
            for name, destination in top.parameters():
                yield self._parameter(form, "", TOP, name, destination)
        for index, block in enumerate(self.blocks):
            for name, destination in block.parameters():
                yield self._parameter(form, LAYER[form].format(index), IN_LAYER, name, destination)

    def _parameter(
        self, form: Format, prefix: str, names: dict[str, dict[str, str]], name: str, destination: Tensor | PackedRows
    ) -> Parameter:
        own, kind = name.split(".")
        halved = self._head_dim if own in IN_HALVES[form] else None
        return Parameter(f"{prefix}{names[own][form]}.{kind}", destination, halved_heads=halved)

    def __call__(self, inputs: StepInputs, caches: list[LayerCache]) -> Tensor:
        """Logits [S, V] in float32. `caches` are the layers' own, which gain the step's tokens."""
        x_TE = self.embedding(inputs.token_ids_T)
        layer_inputs = LayerInputs(self.rotary(inputs.positions_T), inputs.places_T2k, inputs.plan)
        x_TE = self._stack(x_TE, layer_inputs, caches)
        return self.head.logits(self.norm(x_TE.index_select(0, inputs.sampled_S)))
