"""Rotary position embedding: the angles of a step's tokens, computed once for all layers.

Legend: T tokens, H head size, h = H / 2.
"""

import math
from typing import Protocol

import torch
from torch import Tensor


class Scaling(Protocol):
    """Llama 3's scaling of frequencies, by the names of its configuration."""

    @property
    def factor(self) -> float:
        """What low frequencies are divided by."""

    @property
    def low_freq_factor(self) -> float:
        """Turns within the original length below which a frequency is low."""

    @property
    def high_freq_factor(self) -> float:
        """Turns within the original length above which a frequency is high."""

    @property
    def original_max_position_embeddings(self) -> int:
        """The original length, in tokens."""


class Rotary:
    """Angle i of a token at position p is `p * theta ** (-2 i / H)`, changed by Llama 3's scaling if there is one."""

    def __init__(self, head_dim: int, theta: float, scaling: Scaling | None, device: torch.device) -> None:
        exponents_h = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        frequencies_h = 1.0 / theta**exponents_h
        self._frequencies_h = (frequencies_h if scaling is None else _scaled(frequencies_h, scaling)).to(device)

    def __call__(self, positions_T: Tensor) -> Tensor:
        """The rotation [T, 1, h] of tokens at these positions (int64): complex64 numbers of absolute value 1."""
        angles_T1h = positions_T.float()[:, None, None] * self._frequencies_h
        return torch.polar(torch.ones_like(angles_T1h), angles_T1h)


def _scaled(frequencies_h: Tensor, scaling: Scaling) -> Tensor:
    """Llama 3: low frequencies are divided by `factor`, high ones stay, those between are interpolated."""
    turns_h = scaling.original_max_position_embeddings * frequencies_h / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept_h = ((turns_h - low) / (high - low)).clamp(0.0, 1.0)
    return kept_h * frequencies_h + (1.0 - kept_h) * frequencies_h / scaling.factor
