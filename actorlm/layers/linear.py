"""y = x W^T + b, where W may be several matrices of a checkpoint stacked by rows and multiplied at once.

Legend: T rows, I features in, O features out.
"""

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor


class Linear:
    """`parts` maps the names of the stacked matrices to their numbers of rows, in order."""

    def __init__(self, parts: Mapping[str, int], in_features: int, *, bias: bool, dtype: torch.dtype) -> None:
        self._parts = dict(parts)
        rows = sum(parts.values())
        self.weight_OI = torch.empty(rows, in_features, dtype=dtype)
        self.bias_O = torch.empty(rows, dtype=dtype) if bias else None

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """(name, the rows to fill) of each stacked matrix and bias, such as `query.weight`."""
        begin = 0
        for name, rows in self._parts.items():
            yield f"{name}.weight", self.weight_OI[begin : begin + rows]
            if self.bias_O is not None:
                yield f"{name}.bias", self.bias_O[begin : begin + rows]
            begin += rows

    def __call__(self, x_TI: Tensor) -> Tensor:
        """The result [T, O]."""
        return F.linear(x_TI, self.weight_OI, self.bias_O)

    def add_to(self, total_TO: Tensor, x_TI: Tensor) -> None:
        """Adds x W^T + b to `total`, in place."""
        total_TO.addmm_(x_TI, self.weight_OI.t())
        if self.bias_O is not None:
            total_TO.add_(self.bias_O)
