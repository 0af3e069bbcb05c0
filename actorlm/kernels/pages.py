"""Memory that is read front to back in every step: weights and the KV cache, on huge pages where the system has them.

With 4 KiB pages a step spends its time on address translation, most of all in a virtual machine: a decode step of a
135 M float32 model took 1.12 to 1.26 times as long (2 virtual cores, one row, 12 interleaved rounds each).
"""

import contextlib
import ctypes
import mmap

import torch
from torch import Tensor

from actorlm.errors import InsufficientMemory


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


def give_back(mapped: Tensor) -> None:
    """Makes the whole mapping that a tensor of `map_zeros` lies in zeros again, which take no memory until used.

    Where the system cannot do that they stay as they are, and take what they take.
    """
    if hasattr(mmap, "MADV_DONTNEED"):
        storage = mapped.untyped_storage()
        address, size = ctypes.c_void_p(storage.data_ptr()), ctypes.c_size_t(storage.nbytes())
        ctypes.CDLL(None).madvise(address, size, mmap.MADV_DONTNEED)
