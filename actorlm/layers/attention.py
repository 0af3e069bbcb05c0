"""Self-attention with grouped heads over a paged cache; query, key and value are one matrix.

Legend: T tokens, E hidden size, n query heads, k key-value heads, m = n + 2 k, H head size.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from actorlm.kernels.layer_cache import LayerCache
from actorlm.kernels.linear import PackedRows
from actorlm.kernels.paged_attention import AttentionPlan, TilePlan, paged_attention
from actorlm.kernels.pages import Arena
from actorlm.kernels.rope_and_store import Heads, rope_and_store
from actorlm.layers.activations import Activations
from actorlm.layers.linear import Linear


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a model computes one step from. Tensors are int64."""

    token_ids_T: Tensor
    positions_T: Tensor
    places_T2k: Tensor
    """Where each token's keys and values go, one place a head; see `kernels.rope_and_store`."""
    plan: AttentionPlan | TilePlan
    sampled_S: Tensor
    """Which of the T tokens need logits."""


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """What every layer of a step needs of it, beside the tokens' vectors."""

    rotation_T1h: Tensor
    """complex64 numbers of absolute value 1."""
    places_T2k: Tensor
    plan: AttentionPlan | TilePlan


class Attention:
    """`bias` is for all four matrices."""

    def __init__(
        self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, *, bias: bool, arena: Arena
    ) -> None:
        self._shape = num_heads, num_kv_heads, head_dim, arena.dtype, arena.native
        query, key = num_heads * head_dim, num_kv_heads * head_dim
        self.qkv = Linear({"query": query, "key": key, "value": key}, hidden_size, bias=bias, arena=arena)
        self.output = Linear({"output": hidden_size}, query, bias=bias, arena=arena)

    def parameters(self) -> Iterator[tuple[str, Tensor | PackedRows]]:
        """(name, the tensor to fill) of query, key, value and output."""
        yield from self.qkv.parameters()
        yield from self.output.parameters()

    def heads(self, num_tokens: int) -> Heads:
        """A buffer for so many tokens, for this layer and all of its shape."""
        return Heads(num_tokens, *self._shape)

    def add_to(self, total_TE: Tensor, x_TE: Tensor, work: Activations, inputs: LayerInputs, cache: LayerCache) -> None:
        """Adds attention(x) to `total`, in place; the cache gains keys and values of the step's tokens."""
        heads = work.heads
        self.qkv.write_to(heads.flat_TX, x_TE)
        rope_and_store(heads, inputs.rotation_T1h, cache, inputs.places_T2k)
        self.output.add_to(total_TE, paged_attention(heads.q_TnH, cache, inputs.plan, work.attended_TX))
