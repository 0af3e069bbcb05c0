"""Self-attention with grouped heads over a paged cache; query, key and value are one matrix. Tensor ranks share heads.

Legend: T tokens, E hidden size, n query heads, k key-value heads, m = n + 2 k, H head size; heads are this rank's.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from actorlm.kernels.attention_variant import PLAIN, AttentionVariant
from actorlm.kernels.layer_cache import LayerCache
from actorlm.kernels.paged_attention import Plan, paged_attention
from actorlm.kernels.rms_norm import rms_norm_heads
from actorlm.kernels.rope_and_store import Heads, rope_and_store
from actorlm.layers.activations import Activations
from actorlm.layers.arena import Arena
from actorlm.layers.linear import ColumnParallel, Features, RowParallel
from actorlm.layers.rms_norm import RMSNorm
from actorlm.layers.weight import Weight
from actorlm.partition import kv_share, share


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """What every layer of a step needs of it, beside the tokens' vectors."""

    rotation_T1h: Tensor
    """complex64 numbers of absolute value 1."""
    places_T2k: Tensor
    """Where each token's keys and values go, one place a head (int64), or one place on a GPU ([T], int32); see
    `kernels.rope_and_store`."""
    plan: Plan


class QueryKeyNorms:
    """RMSNorm of each query and of each key: one weight for all heads of queries, one for those of keys."""

    def __init__(self, head_dim: int, eps: float, arena: Arena) -> None:
        self._eps = eps
        self.query = RMSNorm("query_norm", head_dim, eps, arena)
        self.key = RMSNorm("key_norm", head_dim, eps, arena)

    def parameters(self) -> Iterator[Weight]:
        """Both weights, which every tensor rank has whole."""
        yield from self.query.parameters()
        yield from self.key.parameters()

    def normalise(self, heads: Heads) -> None:
        """Changes queries and keys in place."""
        rms_norm_heads(heads.q_TnH, self.query.weight_E, self._eps, heads.backend)
        rms_norm_heads(heads.k_TkH, self.key.weight_E, self._eps, heads.backend)


class Attention:
    """`norms`, if there are some, come before rotation. With `sinks` the layer has one for each query head."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        qkv_bias: bool,
        output_bias: bool,
        norms: QueryKeyNorms | None = None,
        variant: AttentionVariant = PLAIN,
        sinks: bool = False,
        arena: Arena,
    ) -> None:
        size, rank = arena.group.size, arena.group.rank
        heads, kv_heads = share(num_heads, size, rank), kv_share(num_kv_heads, size, rank)
        self._shape = len(heads), len(kv_heads), head_dim, arena.dtype, arena.backend
        query, key = _features(num_heads, heads, head_dim), _features(num_kv_heads, kv_heads, head_dim)
        self.qkv = ColumnParallel({"query": query, "key": key, "value": key}, hidden_size, bias=qkv_bias, arena=arena)
        self.norms = norms
        self.variant = replace(variant, sinks_n=arena.vector(len(heads))) if sinks else variant
        self._heads = Features(num_heads, heads)
        self.output = RowParallel("output", query, hidden_size, bias=output_bias, arena=arena)

    def parameters(self) -> Iterator[Weight]:
        """Those of query, key, value, their norms, sinks and output."""
        yield from self.qkv.parameters()
        if self.norms is not None:
            yield from self.norms.parameters()
        if self.variant.sinks_n is not None:
            yield Weight("sinks.weight", self.variant.sinks_n, self._heads.cut(0))
        yield from self.output.parameters()

    def heads(self, num_tokens: int) -> Heads:
        """A buffer for so many tokens, for this layer and all of its shape."""
        return Heads(num_tokens, *self._shape)

    def add_to(self, total_TE: Tensor, x_TE: Tensor, work: Activations, inputs: LayerInputs, cache: LayerCache) -> None:
        """Adds attention(x) to `total`, in place; the cache gains keys and values of the step's tokens."""
        heads = work.heads
        self.qkv.write_to(heads.flat_TX, x_TE)
        if self.norms is not None:
            self.norms.normalise(heads)
        rope_and_store(heads, inputs.rotation_T1h, cache, inputs.places_T2k)
        attended_TX = paged_attention(heads.q_TnH, cache, inputs.plan, work.attended_TX, self.variant)
        self.output.add_to(total_TE, attended_TX, work.part_TE)


def _features(count: int, heads: range, head_dim: int) -> Features:
    return Features(count * head_dim, range(heads.start * head_dim, heads.stop * head_dim))
