"""y = x W^T + b with weights of one byte: a whole number from -127 to 127, times a scale for each output.

Each row of inputs becomes bytes, too, with a scale of its own: its largest size / 127; a number becomes the nearest
multiple, ties to even. Sums of products are exact, so an output's bits depend on its row and the weights alone.

Legend: T rows, I features in, O features out, R some of the O.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from actorlm.kernels.native import Native
from actorlm.kernels.packed import LANES, check_rows, product, write

MAX_INPUTS = 1 << 16
"""Of which the sum of 127 * 255 still fits into 32 bits with sign."""
LEAST = 1e-30
"""Rows of nothing larger are zeros."""
QUAD = 4


def quantize_rows(x_TI: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers [T, I] (float32) and scales [T]: x is about their product."""
    most_T = x_TI.abs().amax(-1)
    counts_T = most_T >= LEAST
    scale_T = torch.where(counts_T, most_T / 127, 0.0)
    inverse_T = torch.where(counts_T, 127 / most_T, 0.0)
    return torch.round(x_TI * inverse_T[:, None]), scale_T


def reference(
    out_TO: Tensor, x_TI: Tensor, whole_OI: Tensor, scale_O: Tensor, bias_O: Tensor | None, *, adds: bool
) -> None:
    """What the native kernel computes, bit for bit, for finite inputs."""
    whole_TI, scale_T = quantize_rows(x_TI)
    sums_TO = (whole_TI.double() @ whole_OI.double().t()).float()  # exact, and then rounded as in C++
    result_TO = sums_TO * (scale_O * scale_T[:, None])
    write(out_TO, result_TO, bias_O, adds=adds)


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """Weights in panels of 16 outputs, `[O / 16, I / 4, 16, 4]`, flat; one scale each, up to a multiple of 16."""

    native: Native
    panels: Tensor
    scale_o: Tensor
    shape: tuple[int, int]

    @property
    def row_bytes(self) -> int:
        """See `Packed`, also for the others."""
        return self.shape[1]

    def put(self, begin: int, rows_RI: Tensor) -> None:
        """Rows [begin, begin + R) of the matrix, of any type of floats."""
        rows = rows_RI.float()
        check_rows(self, begin, rows)
        whole_RI, scale_R = quantize_rows(rows)
        packed_RI = whole_RI.to(torch.int8).contiguous()
        self.scale_o[begin : begin + len(rows)] = scale_R
        self.native.launch("pack_int8", self.panels, packed_RI, begin, len(rows), self.shape[1])

    def whole(self) -> Tensor:
        """The whole numbers [O, I]."""
        outputs, inputs = self.shape
        quads = self.panels.view(-1, -(-inputs // QUAD), LANES, QUAD)
        return quads.transpose(1, 2).reshape(-1, quads.shape[1] * QUAD)[:outputs, :inputs].float() - 128

    def unpacked(self) -> Tensor:
        """A copy [O, I]."""
        return self.whole() * self.scale_o[: self.shape[0], None]

    def multiply(self, out_TO: Tensor, x_TI: Tensor, bias_O: Tensor | None, *, adds: bool) -> None:
        """Sets `out` to x W^T + b, or adds that to it; see `Packed`."""
        native = self.native
        arguments = product(self, out_TO, x_TI, bias_O)
        native.launch("linear_int8", native.pool, self.panels, self.scale_o, *arguments, adds)

    def gather(self, ids_T: Tensor) -> Tensor:
        """The rows with these numbers (int64), as a new float32 tensor [T, I]."""
        out_TI = torch.empty(len(ids_T), self.shape[1])
        self.native.launch("gather_int8", self.panels, self.scale_o, ids_T, out_TI, *out_TI.shape)
        return out_TI


def int8_bytes(rows: int, columns: int) -> int:
    """What the panels of a matrix take."""
    assert columns <= MAX_INPUTS, f"{columns} features are more than sums of 32 bits hold"
    return -(-rows // LANES) * LANES * -(-columns // QUAD) * QUAD
