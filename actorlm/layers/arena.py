"""What layers are made with: memory for weights, kernels, and the ranks that share each layer."""

import torch
from torch import Tensor

from actorlm.kernels.linear import Matrix, PackedMatrix, panel_count
from actorlm.kernels.native import Native
from actorlm.kernels.pages import map_zeros
from actorlm.parallel.group import Alone, TensorGroup

CHUNK_BYTES = 64 << 20
ALIGNMENT = 64


class Arena:
    """Where layers are made: gives out the memory of a model's weights, all of one dtype, from few large mappings.

    With native kernels matrices are packed, and everything else is float32. `group` are the ranks that share layers.
    """

    def __init__(self, dtype: torch.dtype, native: Native | None = None, group: TensorGroup | None = None) -> None:
        self._dtype = dtype
        self.native = native
        self.group: TensorGroup = group or Alone()
        self.dtype = dtype if native is None else torch.float32
        """Of activations and of weights that are no matrices."""
        self._free = torch.empty(0, dtype=dtype)

    def matrix(self, rows: int, columns: int) -> Matrix:
        """Weights [rows, columns] of zeros, to be filled. Raises InsufficientMemory if the system refuses."""
        if self.native is None:
            return self.empty(rows, columns)
        return PackedMatrix(self.native, self.empty(panel_count(rows, columns)), (rows, columns))

    def vector(self, size: int) -> Tensor:
        """Zeros, to be filled."""
        return torch.zeros(size, dtype=self.dtype)

    def empty(self, *shape: int) -> Tensor:
        """A tensor of zeros, to be filled. Raises InsufficientMemory if the system refuses."""
        count = torch.Size(shape).numel()
        size = self._dtype.itemsize
        taken = -(-count * size // ALIGNMENT) * ALIGNMENT // size
        if taken > len(self._free):
            self._free = map_zeros(max(taken * size, CHUNK_BYTES), self._dtype, "weights")
        given, self._free = self._free[:count], self._free[taken:]
        return given.view(shape)
