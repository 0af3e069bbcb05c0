"""Matrices that are packed for the native kernels: what they have in common, and those of floats.

A matrix lies in panels of 16 rows, `[O / 16, I, 16]`, the last one padded with zeros, so that 16 outputs are computed
from consecutive memory. Rows of inputs, sums and results are float32, whatever the weights are.

Legend: T rows, I features in, O features out, R some of the O.
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from actorlm.kernels.native import Native

LANES = 16
TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""What C++ calls the types of weights."""


class Packed(Protocol):
    """Weights [O, I] in panels; zeros where nothing was put yet. Each form has a `put` of its own."""

    @property
    def shape(self) -> tuple[int, int]:
        """[O, I]."""

    @property
    def row_bytes(self) -> int:
        """Of the I numbers of a row."""

    def unpacked(self) -> Tensor:
        """A copy [O, I]."""

    def multiply(self, out_TO: Tensor, x_TI: Tensor, bias_O: Tensor | None, *, adds: bool) -> None:
        """Sets `out` to x W^T + b, or adds that to it. All are float32 and fit; features are consecutive."""

    def gather(self, ids_T: Tensor) -> Tensor:
        """The rows with these numbers (int64), as a new float32 tensor [T, I]."""


class FilledByRows(Packed, Protocol):
    """Weights that take numbers."""

    def put(self, begin: int, rows_RI: Tensor) -> None:
        """Rows [begin, begin + R) of the matrix, of any type of floats."""


MatrixT = TypeVar("MatrixT", bound=Packed)


def panel_count(rows: int, columns: int) -> int:
    """Numbers that a matrix takes when it is packed."""
    return -(-rows // LANES) * LANES * columns


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """Weights of float32, float16 or bfloat16. `panels` is flat."""

    native: Native
    panels: Tensor
    shape: tuple[int, int]

    @property
    def row_bytes(self) -> int:
        """See `Packed`, also for the others."""
        return self.shape[1] * self.panels.itemsize

    def put(self, begin: int, rows_RI: Tensor) -> None:
        """Rows [begin, begin + R) of the matrix, of any type of floats."""
        rows = rows_RI.to(self.panels.dtype).contiguous()
        check_rows(self, begin, rows)
        self.native.launch("pack", rows.itemsize, self.panels, rows, begin, len(rows), self.shape[1])

    def unpacked(self) -> Tensor:
        """A copy [O, I]."""
        return self.panels.view(-1, self.shape[1], LANES).transpose(1, 2).reshape(-1, self.shape[1])[: self.shape[0]]

    def multiply(self, out_TO: Tensor, x_TI: Tensor, bias_O: Tensor | None, *, adds: bool) -> None:
        """Sets `out` to x W^T + b, or adds that to it; see `Packed`."""
        native, panels = self.native, self.panels
        native.launch("linear", native.pool, TYPES[panels.dtype], panels, *product(self, out_TO, x_TI, bias_O), adds)

    def gather(self, ids_T: Tensor) -> Tensor:
        """The rows with these numbers (int64), as a new float32 tensor [T, I]."""
        out_TI = torch.empty(len(ids_T), self.shape[1])
        self.native.launch("gather", TYPES[self.panels.dtype], self.panels, ids_T, out_TI, *out_TI.shape)
        return out_TI


def check_rows(matrix: Packed, begin: int, rows_RI: Tensor) -> None:
    """What every `put` demands."""
    assert begin + len(rows_RI) <= matrix.shape[0], "the rows are the matrix's own"
    assert rows_RI.shape[1] == matrix.shape[1], "a row has a number for each feature"


def product(matrix: Packed, out_TO: Tensor, x_TI: Tensor, bias_O: Tensor | None) -> tuple[Tensor | int | None, ...]:
    """The arguments that every product's launch has but the last one."""
    outputs, inputs = matrix.shape
    return bias_O, x_TI, out_TO, len(x_TI), inputs, outputs, x_TI.stride(0), out_TO.stride(0)


def write(out_TO: Tensor, result_TO: Tensor, bias_O: Tensor | None, *, adds: bool) -> None:
    """How every oracle ends: the bias is added to the result, in its type, and `out` is set to it or has it added."""
    if bias_O is not None:
        result_TO += bias_O
    out_TO.copy_(out_TO + result_TO if adds else result_TO)


@dataclass(frozen=True, slots=True)
class MatrixRows(Generic[MatrixT]):
    """Some rows of packed weights, to be filled from a checkpoint."""

    matrix: MatrixT
    begin: int
    count: int

    @property
    def shape(self) -> tuple[int, int]:
        """Of these rows."""
        return self.count, self.matrix.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of these rows."""
        return self.count * self.matrix.row_bytes

    def read(self) -> Tensor:
        """A copy of them."""
        return self.matrix.unpacked()[self.begin : self.begin + self.count]


class PackedRows(MatrixRows[FilledByRows]):
    """Those that take numbers."""

    __slots__ = ()

    def put(self, begin: int, rows_RI: Tensor) -> None:
        """Those from the `begin`-th on."""
        assert begin + len(rows_RI) <= self.count, "the rows are these"
        self.matrix.put(self.begin + begin, rows_RI)
