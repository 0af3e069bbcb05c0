"""How a layer makes weights of queries and keys."""

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AttentionVariant:
    """What attention does beside softmax(q k^T / sqrt(H)) v, in this order. By default nothing."""

    scale: float | None = None
    """Of the products of queries and keys; None for 1 / sqrt(H)."""
    soft_cap: float | None = None
    """A score becomes soft_cap tanh(score / soft_cap)."""
    window: int | None = None
    """A query sees the last so many keys, its own among them; None for all."""
    sinks_n: Tensor | None = None
    """One more score for each of this rank's query heads, of a key that has no value."""

    def __post_init__(self) -> None:
        assert self.soft_cap is None or self.soft_cap > 0, "a soft cap is a bound"
        assert self.window is None or self.window > 0, "a query sees its own key"

    def scale_of(self, head_dim: int) -> float:
        """The scale for heads of this size."""
        return 1 / math.sqrt(head_dim) if self.scale is None else self.scale


PLAIN = AttentionVariant()
