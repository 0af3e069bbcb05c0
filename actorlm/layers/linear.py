"""y = x W^T + b, where W may be several matrices of a checkpoint stacked by rows and multiplied at once.

Legend: T rows, I features in, O features out.
"""

from collections.abc import Iterator, Mapping

from torch import Tensor

from actorlm.kernels.linear import PackedRows, linear, rows_of
from actorlm.kernels.pages import Arena


class Linear:
    """`parts` maps the names of the stacked matrices to their numbers of rows, in order."""

    def __init__(self, parts: Mapping[str, int], in_features: int, *, bias: bool, arena: Arena) -> None:
        self._parts = dict(parts)
        rows = sum(parts.values())
        self.weight = arena.matrix(rows, in_features)
        self.bias_O = arena.vector(rows) if bias else None

    def parameters(self) -> Iterator[tuple[str, Tensor | PackedRows]]:
        """(name, the rows to fill) of each stacked matrix and bias, such as `query.weight`."""
        begin = 0
        for name, rows in self._parts.items():
            yield f"{name}.weight", rows_of(self.weight, begin, rows)
            if self.bias_O is not None:
                yield f"{name}.bias", self.bias_O[begin : begin + rows]
            begin += rows

    def write_to(self, out_TO: Tensor, x_TI: Tensor) -> None:
        """Sets `out` to x W^T + b."""
        linear(out_TO, x_TI, self.weight, self.bias_O)

    def add_to(self, total_TO: Tensor, x_TI: Tensor) -> None:
        """Adds x W^T + b to `total`, in place."""
        linear(total_TO, x_TI, self.weight, self.bias_O, adds=True)
