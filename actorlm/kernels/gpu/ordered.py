"""Logits as integers in the same order, so that they can be searched and packed."""

import triton
import triton.language as tl

LOWEST, HIGHEST = tl.constexpr(-(2**31)), tl.constexpr(2**31 - 1)
"""Of int32."""


@triton.jit
def key_of(logits) -> tl.tensor:
    """An int32 in the order of float32 logits; both zeros have the same."""
    bits = tl.where(logits == 0, 0.0, logits).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & HIGHEST)
