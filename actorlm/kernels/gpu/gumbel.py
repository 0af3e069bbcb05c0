"""Gumbel noise for each token of a vocabulary: a function of (seed, position, token id), and of nothing else.

It is -log(E), where E = -log(1 - x) and x on (0, 1) are the 64 bits of `mix(word(seed, position) ^ id)`; the two
functions are those of `execution/randomness.py`. The highest of log(w) + noise is token i's with probability
w_i / sum(w).
"""

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
FIRST_FACTOR = tl.constexpr(0xBF58476D1CE4E5B9)
SECOND_FACTOR = tl.constexpr(0x94D049BB133111EB)
"""Of splitmix64."""

SCALE, LEAST, MOST = tl.constexpr(2.0**-64), tl.constexpr(2.0**-64), tl.constexpr(1 - 2.0**-24)
"""From 64 bits to x, and the bounds of x: -log(E) is finite between them."""


def reference_noise(seed: int, position: int, size: int) -> Tensor:
    """The noise of `size` tokens, float64."""
    state = mix(mix(torch.tensor(seed)) ^ position)
    bits = mix(state ^ torch.arange(size)).numpy().view(np.uint64)
    return torch.from_numpy(-np.log(-np.log1p(-np.clip(bits * SCALE.value, LEAST.value, MOST.value))))


def mix(words: Tensor) -> Tensor:
    """`execution.randomness.mix` of int64, whose bits are those of the unsigned words."""
    x: Tensor = words + _signed(GAMMA.value)
    x = (x ^ _shifted(x, 30)) * _signed(FIRST_FACTOR.value)
    x = (x ^ _shifted(x, 27)) * _signed(SECOND_FACTOR.value)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    return (x >> by).bitwise_and_(2 ** (64 - by) - 1)


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


@triton.jit
def _mix(x):
    x = x + GAMMA
    x = (x ^ (x >> 30)) * FIRST_FACTOR
    x = (x ^ (x >> 27)) * SECOND_FACTOR
    return x ^ (x >> 31)


@triton.jit
def noise_of(word, ids) -> tl.tensor:
    """-log(E) of these ids."""
    bits = _mix(word ^ ids.to(tl.uint64))
    x = tl.minimum(tl.maximum(bits.to(tl.float32) * SCALE, LEAST), MOST)
    series = x * (1 + x * (0.5 + x * (0.33333333 + x * 0.25)))  # 1 - x has lost the last bits of a small x
    return -tl.log(tl.where(x < 0.015625, series, -tl.log(1 - x)))


@triton.jit
def word_of(seed, position) -> tl.tensor:
    """`execution.randomness.word` of two int64."""
    return _mix(_mix(seed.to(tl.uint64)) ^ position.to(tl.uint64))
