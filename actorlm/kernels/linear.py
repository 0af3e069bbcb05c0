"""y = x W^T + b.

Weights are a plain tensor, or packed for the native kernels in one of several forms: floats (`packed.py`), bytes with a
scale for each output (`linear_int8.py`), the blocks of GGUF files (`linear_blocks.py`). Each form has a kernel.

Legend: T rows, I features in, O features out.
"""

import torch
from torch import Tensor

from actorlm.kernels.file_matrix import FileMatrix, FileRows
from actorlm.kernels.linear_int8 import Int8Matrix
from actorlm.kernels.packed import PackedMatrix, PackedRows

Matrix = Tensor | PackedMatrix | Int8Matrix | FileMatrix
Rows = Tensor | PackedRows | FileRows
"""Where rows of a matrix go that is filled from a checkpoint."""


def rows_of(matrix: Matrix, begin: int, count: int) -> Rows:
    """Rows [begin, begin + count), to be filled."""
    if isinstance(matrix, FileMatrix):
        return FileRows(matrix, begin, count)
    if isinstance(matrix, Tensor):
        return matrix[begin : begin + count]
    return PackedRows(matrix, begin, count)


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
    if isinstance(weight, Tensor):
        reference(out_TO, x_TI, weight, bias_O, adds=adds)
        return
    outputs, inputs = weight.shape
    assert x_TI.shape[1] == inputs, "rows have as many features as the weights"
    assert out_TO.shape == (len(x_TI), outputs), "a result for each row and output"
    assert x_TI.dtype is out_TO.dtype is torch.float32, "rows and results are float32"
    assert x_TI.stride(1) == out_TO.stride(1) == 1, "features are consecutive"
    weight.multiply(out_TO, x_TI, bias_O, adds=adds)


def gather_rows(matrix: Matrix, ids_T: Tensor) -> Tensor:
    """The rows [T, I] with these numbers (int64), as a new tensor; float32 if the matrix is packed."""
    return matrix.index_select(0, ids_T) if isinstance(matrix, Tensor) else matrix.gather(ids_T)
