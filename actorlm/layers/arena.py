"""What layers are made with: memory for weights, kernels, and the ranks that share each layer."""

import torch
from torch import Tensor

from actorlm.kernels.backend import Backend, Gpu
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
    in the file. All else is float32 with native kernels, and of that type otherwise. `group` are the ranks that
    share layers.
    """

    def __init__(self, weights: str, backend: Backend = None, group: TensorGroup | None = None) -> None:
        is_native = isinstance(backend, Native)
        assert is_native or weights in FLOATS, f"no matrices of {weights} without native kernels"
        self._weights = weights
        self.backend = backend
        self.device = backend.device if isinstance(backend, Gpu) else torch.device("cpu")
        self.group: TensorGroup = group or Alone()
        self.dtype = torch.float32 if is_native else FLOATS[weights]
        """Of activations and of weights that are no matrices."""
        self._free = torch.empty(0, dtype=torch.uint8)

    def matrix(self, rows: int, columns: int) -> Matrix:
        """Weights [rows, columns] of zeros, to be filled. Raises InsufficientMemory if the system refuses."""
        native, shape = self.backend, (rows, columns)
        if native is None:
            return self._zeros(rows * columns, FLOATS[self._weights]).view(shape)
        if isinstance(native, Gpu):
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        if self._weights == "gguf":
            return FileMatrix(native, shape, self._zeros)
        if self._weights == "int8":
            scale_o = self._zeros(-(-rows // LANES) * LANES, torch.float32)
            return Int8Matrix(native, self._zeros(int8_bytes(*shape), torch.uint8), scale_o, shape)
        return PackedMatrix(native, self._zeros(panel_count(*shape), FLOATS[self._weights]), shape)

    def vector(self, size: int) -> Tensor:
        """Zeros, to be filled."""
        return torch.zeros(size, dtype=self.dtype, device=self.device)

    def _zeros(self, count: int, dtype: torch.dtype) -> Tensor:
        size = -(-count * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        if size > len(self._free):
            self._free = map_zeros(max(size, CHUNK_BYTES), torch.uint8, "weights")
        given, self._free = self._free[: count * dtype.itemsize], self._free[size:]
        return given.view(dtype)
