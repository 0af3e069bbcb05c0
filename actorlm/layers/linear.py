"""y = x W^T + b on the ranks that share a layer: each has some features of y, or some of x.

A column of the product is a feature of y, so a rank of a column-parallel layer has some rows of W and all of x. A rank
of a row-parallel layer has the columns of W for its features of x; what all ranks make of theirs is summed.

Legend: T rows, I features in, O features out; lower case is this rank's share.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torch import Tensor

from actorlm.kernels.linear import linear, rows_of
from actorlm.layers.arena import Arena
from actorlm.layers.weight import Cut, Weight


class Features(NamedTuple):
    """The `part` of `whole` features that a rank has."""

    whole: int
    part: range

    def cut(self, dimension: int) -> Cut | None:
        """What a rank has of a tensor with these features in `dimension`; None for all of it."""
        return None if len(self.part) == self.whole else Cut(dimension, self.part, self.whole)


class ColumnParallel:
    """Several matrices of a checkpoint stacked by rows and multiplied at once; `parts` are their features, in order."""

    def __init__(self, parts: Mapping[str, Features], in_features: int, *, bias: bool, arena: Arena) -> None:
        self._parts = dict(parts)
        rows = sum(len(features.part) for features in parts.values())
        self.weight = arena.matrix(rows, in_features)
        self.bias_o = arena.vector(rows) if bias else None

    def parameters(self) -> Iterator[Weight]:
        """The weight and the bias of each stacked matrix, such as `query.weight`."""
        begin = 0
        for name, features in self._parts.items():
            rows, cut = len(features.part), features.cut(0)
            yield Weight(f"{name}.weight", rows_of(self.weight, begin, rows), cut)
            if self.bias_o is not None:
                yield Weight(f"{name}.bias", self.bias_o[begin : begin + rows], cut)
            begin += rows

    def write_to(self, out_To: Tensor, x_TI: Tensor) -> None:
        """Sets `out` to this rank's features."""
        linear(out_To, x_TI, self.weight, self.bias_o)


class RowParallel:
    """One matrix; `features` are those of x. The bias is the first rank's to add."""

    def __init__(self, name: str, features: Features, out_features: int, *, bias: bool, arena: Arena) -> None:
        self._name = name
        self._features = features
        self._group = arena.group
        self.weight = arena.matrix(out_features, len(features.part))
        self.bias_O = arena.vector(out_features) if bias and self._group.rank == 0 else None

    def parameters(self) -> Iterator[Weight]:
        """The weight, and the bias if there is one and it is this rank's."""
        rows, _ = self.weight.shape
        yield Weight(f"{self._name}.weight", rows_of(self.weight, 0, rows), self._features.cut(1))
        if self.bias_O is not None:
            yield Weight(f"{self._name}.bias", self.bias_O)

    def add_to(self, total_TO: Tensor, x_Ti: Tensor, part_TO: Tensor | None) -> None:
        """Adds the product to `total`, in place. `part` is a buffer for this rank's share, unless it has all of it."""
        if part_TO is None:
            linear(total_TO, x_Ti, self.weight, self.bias_O, adds=True)
        else:
            linear(part_TO, x_Ti, self.weight, self.bias_O)
            self._group.add_reduced(total_TO, part_TO)
