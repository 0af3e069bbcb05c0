"""Sums and exchanges between the tensor ranks of one host, through memory that all of them map.

A rank fills its slot, tells so, waits for all others, and reads theirs. Sums are made in the order of ranks, by every
rank for itself, so that all hold the same bits. Between two processes on two cores this takes a tenth of the time of
gloo's `all_reduce` (for 32 rows of 576 numbers: 56 against 543 microseconds).

All ranks call the same operations in the same order with the same sizes.
"""

import ctypes
import mmap
import weakref

import torch
from torch import Tensor

from actorlm.errors import PeerMissing
from actorlm.kernels.native import Native

SLOT_BYTES = 1 << 20
"""What a rank gives in one round; larger tensors take several."""


def reference(total: Tensor, parts: list[Tensor]) -> None:
    """See `Exchange.add_reduced`. `parts` are those of all ranks."""
    total += sum(parts[1:], parts[0])


def memory_bytes(native: Native, size: int) -> int:
    """The size of the memory that `size` ranks share."""
    return int(native.library.exchange_bytes(size, SLOT_BYTES))


class Exchange:
    """One rank's end of it. `memory` was all zeros when the first rank opened it.

    A rank waits for another until its process ends, and for at most `patience_s` seconds; then its tensors mean
    nothing, and `check` tells.
    """

    launches = True

    def __init__(self, native: Native, memory: mmap.mmap, *, size: int, rank: int, patience_s: float) -> None:
        assert len(memory) >= memory_bytes(native, size), "the memory is of the exchange's size"
        self.size = size
        self.rank = rank
        self._native = native
        self._patience_s = patience_s
        self._memory = memory
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._end: int = native.library.exchange_open(address, size, rank, SLOT_BYTES, patience_s)
        weakref.finalize(self, native.library.exchange_close, self._end)

    def add_reduced(self, total: Tensor, part: Tensor) -> None:
        """Adds to `total` the sum of all ranks' `part`, in place. Both are float32, of one shape."""
        assert total.dtype is part.dtype is torch.float32, "sums are of float32"
        assert total.shape == part.shape, "a part for each total"
        assert total.is_contiguous(), "numbers follow each other"
        assert part.is_contiguous(), "numbers follow each other"
        self._native.launch("add_reduced", self._native.pool, self._end, part, total, total.numel())

    def gather(self, mine: Tensor) -> Tensor | None:
        """[rank, ...] of all ranks' tensors, which are of one shape and dtype, for rank 0; None for all others."""
        assert mine.is_contiguous(), "numbers follow each other"
        everyones = mine.new_empty(self.size, *mine.shape) if self.rank == 0 else None
        self._native.launch("gather_shares", self._end, mine, everyones, mine.nbytes)
        return everyones

    def spread(self, data: Tensor) -> None:
        """Fills `data` with what rank 0 has, on all others."""
        assert data.is_contiguous(), "numbers follow each other"
        self._native.launch("spread", self._end, data, data.nbytes)

    def check(self) -> None:
        """Raises PeerMissing if a rank did not come in time; all that was exchanged since is worthless."""
        missing = self._native.library.exchange_missing(self._end)
        if missing >= 0:
            raise PeerMissing(
                f"tensor rank {missing} has ended, or did not come to an exchange within {self._patience_s:g} s"
            )
