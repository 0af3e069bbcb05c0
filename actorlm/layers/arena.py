"""What layers are made with: memory for weights, kernels, and the ranks that share each layer."""

import torch
from torch import Tensor

from actorlm.kernels.file_matrix import FileMatrix
from actorlm.kernels.linear import Matrix
from actorlm.kernels.linear_int8 import Int8Matrix, int8_bytes
from actorlm.kernels.native import Native
from actorlm.kernels.packed import LANES, PackedMatrix, panel_count
from actorlm.kernels.pages import map_zeros
from actorlm.parallel.group import Alone, TensorGroup

CHUNK_BYTES = 64 << 20
ALIGNMENT = 64
FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Arena:
    """Where layers are made: gives out the memory of a model's weights from few large mappings.

    `weights` is the form of matrices: a type of floats; with native kernels also int8, or gguf for blocks as they are
    in the file. All else is of that type in plain torch, and float32 with native kernels. `group` are the ranks that
    share layers.
    """

    def __init__(self, weights: str, native: Native | None = None, group: TensorGroup | None = None) -> None:
        assert native is not None or weights in FLOATS, f"plain torch has no matrices of {weights}"
        self._weights = weights
        self.native = native
        self.group: TensorGroup = group or Alone()
        self.dtype = FLOATS[weights] if native is None else torch.float32
        """Of activations and of weights that are no matrices."""
        self._free = torch.empty(0, dtype=torch.uint8)

    def matrix(self, rows: int, columns: int) -> Matrix:
        """Weights [rows, columns] of zeros, to be filled. Raises InsufficientMemory if the system refuses."""
        if self.native is None:
            return self._zeros(rows * columns, FLOATS[self._weights]).view(rows, columns)
        shape = rows, columns
        if self._weights == "gguf":
            return FileMatrix(self.native, shape, self._zeros)
        if self._weights == "int8":
            scale_o = self._zeros(-(-rows // LANES) * LANES, torch.float32)
            return Int8Matrix(self.native, self._zeros(int8_bytes(*shape), torch.uint8), scale_o, shape)
        return PackedMatrix(self.native, self._zeros(panel_count(*shape), FLOATS[self._weights]), shape)

    def vector(self, size: int) -> Tensor:
        """Zeros, to be filled."""
        return torch.zeros(size, dtype=self.dtype)

    def _zeros(self, count: int, dtype: torch.dtype) -> Tensor:
        size = -(-count * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        if size > len(self._free):
            self._free = map_zeros(max(size, CHUNK_BYTES), torch.uint8, "weights")
        given, self._free = self._free[: count * dtype.itemsize], self._free[size:]
        return given.view(dtype)
