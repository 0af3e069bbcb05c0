"""Buffers for a step's tokens, which all layers of a model use in turn.

Legend: T tokens, E hidden size, n query heads, H head size.
"""

from dataclasses import dataclass

from torch import Tensor

from actorlm.kernels.rope_and_store import Heads
from actorlm.kernels.silu_mul import Gates


@dataclass(frozen=True, slots=True)
class Activations:
    """What layers write their results to. None where torch makes its own."""

    normed_TE: Tensor | None
    heads: Heads
    attended_TX: Tensor | None
    """[T, n H]."""
    gates: Gates
    part_TE: Tensor | None = None
    """What one of several tensor ranks adds to all ranks' sum."""
