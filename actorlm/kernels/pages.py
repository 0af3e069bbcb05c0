"""Memory that is read front to back in every step: weights and the KV cache, on huge pages where the system has them.

With 4 KiB pages a step spends its time on address translation, most of all in a virtual machine: a decode step of a
135 M float32 model took 1.12 to 1.26 times as long (2 virtual cores, one row, 12 interleaved rounds each).
"""

import contextlib
import mmap

import torch
from torch import Tensor

from actorlm.errors import InsufficientMemory
from actorlm.kernels.linear import Matrix, PackedMatrix, panel_count
from actorlm.kernels.native import Native

CHUNK_BYTES = 64 << 20
ALIGNMENT = 64


def map_zeros(size: int, dtype: torch.dtype, what: str) -> Tensor:
    """A flat tensor of `size` bytes of zeros, which take memory only once they are used.

    Raises InsufficientMemory, which names `what` it is for, if the system refuses.
    """
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise InsufficientMemory(f"the system refuses {size / 2**20:,.0f} MiB for {what} ({error})") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel that was built without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype)


class Arena:
    """Gives out the memory of a model's weights, all of one dtype, from few large mappings.

    With native kernels matrices are packed, and everything else is float32.
    """

    def __init__(self, dtype: torch.dtype, native: Native | None = None) -> None:
        self._dtype = dtype
        self.native = native
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
