"""y = x W^T + b.

Weights are a plain tensor, or packed for the native kernel: in panels of 16 rows, `[O / 16, I, 16]`, the last one
padded with zeros, so that 16 outputs are computed from consecutive memory. Packed weights may be float32, bfloat16 or
float16; rows, sums and results are float32 then.

Legend: T rows, I features in, O features out.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from actorlm.kernels.native import Native

LANES = 16
TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""What C++ calls the types of weights and caches."""


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """Weights [O, I] in panels. `panels` is flat, and zeros where nothing was put yet."""

    native: Native
    panels: Tensor
    shape: tuple[int, int]

    def put(self, begin: int, rows_RI: Tensor) -> None:
        """Rows [begin, begin + R) of the matrix."""
        rows = rows_RI.to(self.panels.dtype).contiguous()
        assert begin + len(rows) <= self.shape[0], "the rows are the matrix's own"
        assert rows.shape[1] == self.shape[1], "a row has a number for each feature"
        self.native.launch("pack", rows.itemsize, self.panels, rows, begin, len(rows), self.shape[1])

    def unpacked(self) -> Tensor:
        """A copy [O, I]."""
        return self.panels.view(-1, self.shape[1], LANES).transpose(1, 2).reshape(-1, self.shape[1])[: self.shape[0]]


Matrix = Tensor | PackedMatrix


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Some rows of packed weights, to be filled from a checkpoint."""

    matrix: PackedMatrix
    begin: int
    count: int

    @property
    def shape(self) -> tuple[int, int]:
        """Of these rows."""
        return self.count, self.matrix.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of these rows."""
        return self.count * self.matrix.shape[1] * self.matrix.panels.itemsize

    def put(self, begin: int, rows_RI: Tensor) -> None:
        """Those from the `begin`-th on."""
        assert begin + len(rows_RI) <= self.count, "the rows are these"
        self.matrix.put(self.begin + begin, rows_RI)

    def read(self) -> Tensor:
        """A copy of them."""
        return self.matrix.unpacked()[self.begin : self.begin + self.count]


def rows_of(matrix: Matrix, begin: int, count: int) -> Tensor | PackedRows:
    """Rows [begin, begin + count), to be filled."""
    if isinstance(matrix, PackedMatrix):
        return PackedRows(matrix, begin, count)
    return matrix[begin : begin + count]


def panel_count(rows: int, columns: int) -> int:
    """Numbers that a matrix takes when it is packed."""
    return -(-rows // LANES) * LANES * columns


def reference(out_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, *, adds: bool) -> None:
    """See `linear`."""
    if adds:
        out_TO.addmm_(x_TI, weight_OI.t())
        if bias_O is not None:
            out_TO.add_(bias_O)
    elif bias_O is None:
        torch.mm(x_TI, weight_OI.t(), out=out_TO)
    else:
        torch.addmm(bias_O, x_TI, weight_OI.t(), out=out_TO)


def linear(out_TO: Tensor, x_TI: Tensor, weight: Matrix, bias_O: Tensor | None = None, *, adds: bool = False) -> None:
    """Sets `out` to x W^T + b, or adds that to it. Launches the implementation that the weights are packed for."""
    if not isinstance(weight, PackedMatrix):
        reference(out_TO, x_TI, weight, bias_O, adds=adds)
        return
    rows, (outputs, inputs) = len(x_TI), weight.shape
    assert x_TI.shape[1] == inputs, "rows have as many features as the weights"
    assert out_TO.shape == (rows, outputs), "a result for each row and output"
    assert x_TI.dtype is out_TO.dtype is torch.float32, "rows and results are float32"
    assert x_TI.stride(1) == out_TO.stride(1) == 1, "features are consecutive"
    native, panels = weight.native, weight.panels
    native.launch(
        "linear", native.pool, TYPES[panels.dtype], panels, bias_O, x_TI, out_TO, rows, inputs, outputs,
        x_TI.stride(0), out_TO.stride(0), adds,
    )  # fmt: skip


def gather_rows(matrix: Matrix, ids_T: Tensor) -> Tensor:
    """The rows [T, I] with these numbers (int64), as a new tensor; float32 if the matrix is packed."""
    if not isinstance(matrix, PackedMatrix):
        return matrix.index_select(0, ids_T)
    out_TI = torch.empty(len(ids_T), matrix.shape[1])
    panels = matrix.panels
    matrix.native.launch("gather", TYPES[panels.dtype], panels, ids_T, out_TI, *out_TI.shape)
    return out_TI
