"""Normalises each token's vector and scales its features."""

from collections.abc import Iterator

from torch import Tensor

from actorlm.kernels.rms_norm import rms_norm
from actorlm.layers.arena import Arena
from actorlm.layers.weight import Weight


class RMSNorm:
    """`name` is the layer's own; `size` is its number of features."""

    def __init__(self, name: str, size: int, eps: float, arena: Arena) -> None:
        self._name = name
        self._eps = eps
        self._backend = arena.backend
        self.weight_E = arena.vector(size)

    def parameters(self) -> Iterator[Weight]:
        """The weight."""
        yield Weight(f"{self._name}.weight", self.weight_E)

    def __call__(self, x_TE: Tensor, out_TE: Tensor | None = None) -> Tensor:
        """The result [T, E], which a native kernel writes to `out` if there is one."""
        return rms_norm(x_TE, self.weight_E, self._eps, self._backend, out_TE)
