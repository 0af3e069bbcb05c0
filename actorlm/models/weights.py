"""Fills a model's parameters from a checkpoint, a slice of rows at a time: the weights are never twice in memory.

A rank reads only what it has of a tensor that is cut over ranks. A source is safetensors (one file, or several with an
index) or GGUF, which is dequantised, unless the matrix takes its blocks as they are. Everything wrong with it, a
missing tensor, another shape, a damaged file, is a ModelError that names the file or tensor.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from actorlm.checkpoint.description import ModelDescription
from actorlm.checkpoint.gguf import GgufFile
from actorlm.checkpoint.safetensors import check_weights
from actorlm.errors import ModelError
from actorlm.kernels.file_matrix import FLOATS, KINDS, FileRows
from actorlm.kernels.linear import Rows
from actorlm.kernels.linear_blocks import FORMS
from actorlm.kernels.packed import PackedRows
from actorlm.layers.weight import Cut

MAX_SLICE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor of a checkpoint and where its numbers go.

    With `halved_heads`, the size H of a head, the checkpoint's rows 0, 1, 2, ... of each head come to `destination` in
    the order 0, H/2, 1, H/2 + 1, ...: those that are rotated together become neighbours.
    """

    name: str
    destination: Rows
    halved_heads: int | None = None
    cut: Cut | None = None
    """Which part of the tensor goes there; None for all of it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor in the checkpoint."""
        shape = list(self.destination.shape)
        if self.cut is not None:
            shape[self.cut.dimension] = self.cut.whole
        return tuple(shape)

    def place_of(self, rows: slice) -> tuple[slice, slice | None]:
        """The rows and columns of the checkpoint's tensor that some rows of the destination hold; None for all."""
        if self.cut is None:
            return rows, None
        if self.cut.dimension == 0:
            return slice(self.cut.part.start + rows.start, self.cut.part.start + rows.stop), None
        return rows, slice(self.cut.part.start, self.cut.part.stop)


class Source(Protocol):
    """An open checkpoint."""

    @property
    def bytes_read(self) -> int:
        """Of tensors, as they are in the file."""

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The tensor's shape, or None if there is no such tensor."""

    def read(self, name: str, rows: slice, columns: slice | None) -> Tensor:
        """Some rows of the tensor, or some columns of these, in any dtype."""

    def kind(self, name: str) -> str:
        """How the file stores the tensor's numbers, such as F16 or Q4_K."""

    def read_packed(self, name: str, rows: slice, columns: slice | None) -> Tensor:
        """Some rows of the tensor, or whole blocks of these, as they lie in the file: bytes."""


class SafetensorsSource:
    """A directory with safetensors files."""

    def __init__(self, directory: str, stack: ExitStack) -> None:
        self.bytes_read = 0
        self._slices: dict[str, Any] = {}
        for path in check_weights(Path(directory)).paths:
            file = _open_safetensors(path, stack)
            self._slices.update((name, file.get_slice(name)) for name in file.keys())  # noqa: SIM118 - not a dict

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The tensor's shape, or None if there is no such tensor."""
        return tuple(self._slices[name].get_shape()) if name in self._slices else None

    def read(self, name: str, rows: slice, columns: slice | None) -> Tensor:
        """Some rows of the tensor, or some columns of these, in the file's dtype."""
        tensor: Tensor = self._slices[name][rows] if columns is None else self._slices[name][rows, columns]
        self.bytes_read += tensor.nbytes
        return tensor

    def kind(self, name: str) -> str:
        """The tensor's dtype, as the file calls it."""
        return str(self._slices[name].get_dtype())

    def read_packed(self, name: str, rows: slice, columns: slice | None) -> Tensor:
        """Nothing: safetensors have no blocks."""
        raise AssertionError(f"{name} has no blocks")


class GgufSource:
    """A GGUF file."""

    def __init__(self, path: str, stack: ExitStack) -> None:
        self._file = stack.enter_context(GgufFile(path))

    @property
    def bytes_read(self) -> int:
        """Of packed tensors."""
        return self._file.bytes_read

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The tensor's shape, or None if there is no such tensor."""
        return self._file.tensors[name].shape if name in self._file.tensors else None

    def read(self, name: str, rows: slice, columns: slice | None) -> Tensor:
        """Some rows of the tensor, or some columns of these, dequantised to float32."""
        return torch.from_numpy(self._file.read(name, rows, columns))

    def kind(self, name: str) -> str:
        """The tensor's type."""
        return self._file.tensors[name].type

    def read_packed(self, name: str, rows: slice, columns: slice | None) -> Tensor:
        """Some rows of the tensor, or whole blocks of these, as they lie in the file: bytes."""
        return torch.from_numpy(self._file.read_packed(name, rows, columns))


def load_weights(model: ModelDescription, parameters: Iterable[Parameter], progress: Callable[[int, int], None]) -> int:
    """Fills every parameter from the checkpoint at `model.path`; `progress` gets bytes filled and in total.

    Returns the bytes of tensors that were read. Raises ModelError if the checkpoint cannot be read or does not fit.
    """
    with ExitStack() as stack:
        source = _open(model, stack)
        fill(source, list(parameters), progress)
        return source.bytes_read


def fill(source: Source, parameters: list[Parameter], progress: Callable[[int, int], None]) -> None:
    """Checks all names and shapes, then fills every parameter. `progress` gets bytes filled and in total."""
    for parameter in parameters:
        _check(source.shape(parameter.name), parameter)
        if isinstance(parameter.destination, FileRows):
            _check_kind(source.kind(parameter.name), parameter)
    total = sum(parameter.destination.nbytes for parameter in parameters)
    done = 0
    for parameter in parameters:
        for rows in _row_slices(parameter):
            _fill_rows(source, parameter, rows)
            done += parameter.destination.nbytes // parameter.destination.shape[0] * (rows.stop - rows.start)
            progress(done, total)


def _fill_rows(source: Source, parameter: Parameter, rows: slice) -> None:
    destination, place = parameter.destination, parameter.place_of(rows)
    if isinstance(destination, FileRows):
        kind = source.kind(parameter.name)
        read = source.read if kind in FLOATS else source.read_packed
        destination.put(rows.start, kind, _ordered(read(parameter.name, *place), parameter.halved_heads))
        return
    numbers = _ordered(source.read(parameter.name, *place), parameter.halved_heads)
    if isinstance(destination, PackedRows):
        destination.put(rows.start, numbers)
    else:
        destination[rows].copy_(numbers)


def _check_kind(kind: str, parameter: Parameter) -> None:
    """Raises ModelError for a tensor that cannot stay in its file's form."""
    if kind not in KINDS:
        raise ModelError(
            f"{parameter.name} has type {kind}, which cannot stay as it is; {', '.join(KINDS)} can."
            " Use --weights int8 or float16"
        )
    cut = parameter.cut
    if kind in FORMS and cut is not None and cut.dimension == 1:
        size = FORMS[kind].inputs
        if cut.part.start % size or cut.part.stop % size:
            raise ModelError(
                f"{parameter.name} has blocks of {size} columns ({kind}), and this rank's share is columns"
                f" {cut.part.start} to {cut.part.stop}; use another --tp, or --weights int8 or float16"
            )


def _check(shape: tuple[int, ...] | None, parameter: Parameter) -> None:
    if shape is None:
        raise ModelError(f"the checkpoint has no tensor {parameter.name}")
    if shape != parameter.shape:
        raise ModelError(f"{parameter.name} has shape {shape}; the model needs {parameter.shape}")


def _row_slices(parameter: Parameter) -> Iterable[slice]:
    (rows, *columns), unit = parameter.destination.shape, parameter.halved_heads or 1
    per_slice = MAX_SLICE_BYTES // (unit * math.prod(columns) * 4)
    step = max(per_slice, 1) * unit
    return (slice(begin, min(begin + step, rows)) for begin in range(0, rows, step))


def _ordered(rows: Tensor, halved_heads: int | None) -> Tensor:
    if halved_heads is None:
        return rows
    return rows.view(-1, 2, halved_heads // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _open(model: ModelDescription, stack: ExitStack) -> Source:
    if model.format == "gguf":
        return GgufSource(model.path, stack)
    if model.format == "safetensors":
        return SafetensorsSource(model.path, stack)
    raise ModelError(f"{model.name} has no weights; it runs with --model-impl null only")


def _open_safetensors(path: Path, stack: ExitStack) -> Any:
    try:
        return stack.enter_context(safe_open(path, framework="pt"))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
