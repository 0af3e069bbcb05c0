"""Self-attention with grouped heads over a paged cache; query, key and value are one matrix.

Legend: T tokens, E hidden size, n query heads, k key-value heads, m = n + 2 k, H head size.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from actorlm.kernels.paged_attention import AttentionPlan, paged_attention
from actorlm.kernels.rope_and_store import rope_and_store
from actorlm.layers.linear import Linear


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a model computes one step from. Tensors are int64."""

    token_ids_T: Tensor
    positions_T: Tensor
    places_T2k: Tensor
    """Where each token's keys and values go, one place a head; see `kernels.rope_and_store`."""
    plan: AttentionPlan
    sampled_S: Tensor
    """Which of the T tokens need logits."""


class Attention:
    """`bias` is for all four matrices."""

    def __init__(
        self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, *, bias: bool, dtype: torch.dtype
    ) -> None:
        self._head_dim = head_dim
        query, key = num_heads * head_dim, num_kv_heads * head_dim
        self.qkv = Linear({"query": query, "key": key, "value": key}, hidden_size, bias=bias, dtype=dtype)
        self.output = Linear({"output": hidden_size}, query, bias=bias, dtype=dtype)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """(name, the tensor to fill) of query, key, value and output."""
        yield from self.qkv.parameters()
        yield from self.output.parameters()

    def add_to(self, total_TE: Tensor, x_TE: Tensor, rotation: Tensor, inputs: StepInputs, cache: Tensor) -> None:
        """Adds attention(x) to `total`, in place; this layer's cache gains keys and values of the step's tokens."""
        qkv_TmH = self.qkv(x_TE).view(len(x_TE), -1, self._head_dim)
        q_TnH = rope_and_store(qkv_TmH, rotation, cache, inputs.places_T2k)
        out_TnH = paged_attention(q_TnH, cache, inputs.plan)
        self.output.add_to(total_TE, out_TnH.view(len(x_TE), -1))
