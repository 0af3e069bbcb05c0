"""y = x W^T + b with weights in the blocks of a GGUF file, kept as small as they are there.

A weight is scale * (q - offset) + minimum with a whole number q of 4 to 8 bits, and a scale and perhaps a minimum for
each 16 or 32 of a row. Each 32 numbers of a row of inputs become bytes with one scale, as rows do in `linear_int8.py`.
The sum of 16 or 32 products is exact; those of an output are scaled and added in order.

Legend: T rows, I features in, O features out, R some of the O, B = I / 32 blocks, s = I / 16 or I / 32 steps.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from actorlm.kernels.linear_int8 import quantize_rows
from actorlm.kernels.native import Native
from actorlm.kernels.packed import LANES, product, write

X_BLOCK = 32


class Form(NamedTuple):
    """A block type: what C++ calls it, and how many numbers and bytes a block has in a file."""

    number: int
    inputs: int
    row_bytes: int


FORMS = {
    "Q8_0": Form(0, 32, 34),
    "Q4_0": Form(1, 32, 18),
    "Q4_1": Form(2, 32, 20),
    "Q4_K": Form(3, 256, 144),
    "Q6_K": Form(4, 256, 210),
}


def reference(out_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, *, adds: bool) -> None:
    """What the native kernel computes but for the order of its sums; `weight` are the dequantised numbers."""
    whole_XK, scale_X = quantize_rows(x_TI.reshape(-1, X_BLOCK))
    inputs_TI = (whole_XK.double() * scale_X.double()[:, None]).view(x_TI.shape)
    result_TO = inputs_TI @ weight_OI.double().t()
    write(out_TO, result_TO, bias_O, adds=adds)


@dataclass(frozen=True, slots=True)
class BlockMatrix:
    """Weights of one form in panels of 16 outputs, as bytes."""

    native: Native
    form: Form
    panels: Tensor
    shape: tuple[int, int]

    @property
    def row_bytes(self) -> int:
        """Of the blocks of a row."""
        return self.shape[1] // self.form.inputs * self.form.row_bytes

    def put(self, begin: int, rows_RX: Tensor) -> None:
        """Rows [begin, begin + R) of the matrix, as they lie in a file: bytes [R, X]."""
        assert begin + len(rows_RX) <= self.shape[0], "the rows are the matrix's own"
        assert rows_RX.dtype is torch.uint8, "blocks are bytes"
        assert rows_RX.shape[1] == self.row_bytes, "rows of whole blocks"
        rows = rows_RX.contiguous()
        self.native.launch("pack_blocks", self.form.number, self.panels, rows, begin, len(rows), self.shape[1])

    def unpacked(self) -> Tensor:
        """A copy [O, I] of the numbers, float32."""
        return self.gather(torch.arange(self.shape[0]))

    def multiply(self, out_TO: Tensor, x_TI: Tensor, bias_O: Tensor | None, *, adds: bool) -> None:
        """Sets `out` to x W^T + b, or adds that to it; see `Packed`."""
        native = self.native
        arguments = product(self, out_TO, x_TI, bias_O)
        native.launch("linear_blocks", native.pool, self.form.number, self.panels, *arguments, adds)

    def gather(self, ids_T: Tensor) -> Tensor:
        """The rows with these numbers (int64), as a new float32 tensor [T, I]."""
        out_TI = torch.empty(len(ids_T), self.shape[1])
        self.native.launch("gather_blocks", self.form.number, self.panels, ids_T, out_TI, *out_TI.shape)
        return out_TI


def blocks_bytes(native: Native, form: Form, rows: int, columns: int) -> int:
    """What the panels of a matrix take."""
    assert columns % form.inputs == 0, "rows are whole blocks"
    size: int = native.library.panel_bytes(form.number, columns)
    return -(-rows // LANES) * size
