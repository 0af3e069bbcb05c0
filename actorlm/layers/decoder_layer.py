"""A layer of a decoder: RMSNorm before attention and before a gated MLP, each added to what went in.

Legend: T tokens, E hidden size, n query heads, H head size.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from actorlm.kernels.backend import Backend
from actorlm.kernels.layer_cache import LayerCache
from actorlm.kernels.native import Native
from actorlm.layers.activations import Activations
from actorlm.layers.arena import Arena
from actorlm.layers.attention import Attention, LayerInputs
from actorlm.layers.mlp import GatedMLP
from actorlm.layers.rms_norm import RMSNorm
from actorlm.layers.weight import Weight


class DecoderLayer:
    """`size` is that of the vectors which attention and the MLP read and add to; `eps` is for both norms."""

    def __init__(self, size: int, eps: float, attention: Attention, mlp: GatedMLP, arena: Arena) -> None:
        self._is_shared = arena.group.size > 1
        self.attention_norm = RMSNorm("attention_norm", size, eps, arena)
        self.attention = attention
        self.mlp_norm = RMSNorm("mlp_norm", size, eps, arena)
        self.mlp = mlp

    def buffers(self, num_tokens: int, backend: Backend) -> Activations:
        """For this layer and all of its shape."""
        heads, gates = self.attention.heads(num_tokens), self.mlp.gates(num_tokens)
        weight_E = self.attention_norm.weight_E
        shape_TE = num_tokens, len(weight_E)
        part_TE = weight_E.new_empty(shape_TE) if self._is_shared else None
        if not isinstance(backend, Native):
            return Activations(None, heads, None, gates, part_TE)
        attended_TX = torch.empty(num_tokens, heads.q_TnH[0].numel())
        return Activations(weight_E.new_empty(shape_TE), heads, attended_TX, gates, part_TE)

    def update(self, x_TE: Tensor, inputs: LayerInputs, cache: LayerCache, work: Activations) -> None:
        """Adds to `x` what the layer computes, in place."""
        self.attention.add_to(x_TE, self.attention_norm(x_TE, work.normed_TE), work, inputs, cache)
        self.mlp.add_to(x_TE, self.mlp_norm(x_TE, work.normed_TE), work)

    def parameters(self) -> Iterator[Weight]:
        """Those of everything in the layer."""
        for part in (self.attention_norm, self.attention, self.mlp_norm, self.mlp):
            yield from part.parameters()
