"""y = x W^T + b, where W may be several matrices of a checkpoint stacked by rows and multiplied at once.

Legend: T rows, I features in, O features out.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from actorlm.kernels.pages import Arena


class Linear:
    """`parts` maps the names of the stacked matrices to their numbers of rows, in order."""

    def __init__(self, parts: Mapping[str, int], in_features: int, *, bias: bool, arena: Arena) -> None:
        self._parts = dict(parts)
        rows = sum(parts.values())
        self.weight_OI = arena.empty(rows, in_features)
        self._weight_IO = self.weight_OI.t()
        self.bias_O = arena.empty(rows) if bias else None

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """(name, the rows to fill) of each stacked matrix and bias, such as `query.weight`."""
        begin = 0
        for name, rows in self._parts.items():
            yield f"{name}.weight", self.weight_OI[begin : begin + rows]
            if self.bias_O is not None:
                yield f"{name}.bias", self.bias_O[begin : begin + rows]
            begin += rows

    def write_to(self, out_TO: Tensor, x_TI: Tensor) -> None:
        """Sets `out` to x W^T + b."""
        if self.bias_O is None:
            torch.mm(x_TI, self._weight_IO, out=out_TO)
        else:
            torch.addmm(self.bias_O, x_TI, self._weight_IO, out=out_TO)

    def add_to(self, total_TO: Tensor, x_TI: Tensor) -> None:
        """Adds x W^T + b to `total`, in place."""
        total_TO.addmm_(x_TI, self._weight_IO)
        if self.bias_O is not None:
            total_TO.add_(self.bias_O)
