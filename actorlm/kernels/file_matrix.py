"""A matrix whose rows stay as a GGUF file has them: runs of rows, each in the form of the tensor that fills it.

Where a file stacks tensors of different types (often values have more bits than queries), each run is a matrix of its
own, and a product is one launch a run.

Legend: T rows, I features in, O features out, R rows of one tensor, X numbers or bytes of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from actorlm.kernels.linear_blocks import FORMS, BlockMatrix, blocks_bytes
from actorlm.kernels.native import Native
from actorlm.kernels.packed import MatrixRows, PackedMatrix, panel_count

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
KINDS = (*FORMS, *FLOATS)
"""The types of tensors that can stay as they are."""

Allocate = Callable[[int, torch.dtype], Tensor]
"""Zeros: so many numbers of a type."""


@dataclass(slots=True)
class Run:
    """Rows [begin, end) of the matrix, all of one kind; it has memory for all rows from `begin` on."""

    kind: str
    begin: int
    end: int
    matrix: PackedMatrix | BlockMatrix


@dataclass(frozen=True, slots=True)
class FileMatrix:
    """Weights [O, I], which have no form before they are filled, in order. Without rows they stand for zeros."""

    native: Native
    shape: tuple[int, int]
    allocate: Allocate
    runs: list[Run] = field(default_factory=list)

    @property
    def row_bytes(self) -> int:
        """About those of a row: how many a number takes shows when it is filled."""
        return self.shape[1]

    def put(self, begin: int, kind: str, rows_RX: Tensor) -> None:
        """Rows from `begin` on: numbers of a kind in `FLOATS`, or the bytes of blocks, as they lie in a file."""
        assert begin + len(rows_RX) <= self.shape[0], "the rows are the matrix's own"
        run = self._run(begin, kind)
        run.matrix.put(begin - run.begin, rows_RX)
        run.end = begin + len(rows_RX)

    def _run(self, begin: int, kind: str) -> Run:
        last = self.runs[-1] if self.runs else None
        assert begin == (0 if last is None else last.end), "rows are put in order"
        if last is not None and last.kind == kind:
            return last
        if last is not None:
            last.matrix = replace(last.matrix, shape=(last.end - last.begin, self.shape[1]))
        self.runs.append(Run(kind, begin, begin, self._make(kind, self.shape[0] - begin)))
        return self.runs[-1]

    def _make(self, kind: str, rows: int) -> PackedMatrix | BlockMatrix:
        shape = rows, self.shape[1]
        if kind in FLOATS:
            return PackedMatrix(self.native, self.allocate(panel_count(*shape), FLOATS[kind]), shape)
        panels = self.allocate(blocks_bytes(self.native, FORMS[kind], *shape), torch.uint8)
        return BlockMatrix(self.native, FORMS[kind], panels, shape)

    def unpacked(self) -> Tensor:
        """A copy [O, I] of the numbers, float32."""
        return torch.cat([run.matrix.unpacked().float() for run in self.runs])

    def multiply(self, out_TO: Tensor, x_TI: Tensor, bias_O: Tensor | None, *, adds: bool) -> None:
        """Sets `out` to x W^T + b, or adds that to it; see `Packed`."""
        if not self.runs:
            out_TO.zero_()
        for run in self.runs:
            bias = None if bias_O is None else bias_O[run.begin : run.end]
            run.matrix.multiply(out_TO[:, run.begin : run.end], x_TI, bias, adds=adds)

    def gather(self, ids_T: Tensor) -> Tensor:
        """The rows with these numbers (int64), as a new float32 tensor [T, I]."""
        if not self.runs:
            return torch.zeros(len(ids_T), self.shape[1])
        assert len(self.runs) == 1, "an embedding is one tensor"
        return self.runs[0].matrix.gather(ids_T)


class FileRows(MatrixRows[FileMatrix]):
    """Some rows of such a matrix, to be filled by one tensor."""

    __slots__ = ()

    def put(self, begin: int, kind: str, rows_RX: Tensor) -> None:
        """Those from the `begin`-th on."""
        assert begin + len(rows_RX) <= self.count, "the rows are these"
        self.matrix.put(self.begin + begin, kind, rows_RX)
