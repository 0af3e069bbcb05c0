"""One list of numbers per slot, of differing lengths, read and written for many slots at once: no loop over slots."""

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

INITIAL_WIDTH = 16

Number = TypeVar("Number", np.int32, np.float32)
Indices = NDArray[np.int64]


def ranges(starts: Indices, counts: Indices) -> tuple[Indices, Indices]:
    """The ranges [starts[i], starts[i] + counts[i]) one after another, as (i of each number, number)."""
    owner = np.repeat(np.arange(len(counts)), counts)
    begins = np.cumsum(counts) - counts
    return owner, np.arange(len(owner)) + (starts - begins)[owner]


class Ragged(Generic[Number]):
    """Rows of `values` [slots, width] of which the first `counts` [slots] numbers count. Width grows with need."""

    def __init__(self, slots: int, dtype: type[Number]) -> None:
        self.values: NDArray[Number] = np.zeros((slots, INITIAL_WIDTH), dtype)
        self.counts: Indices = np.zeros(slots, np.int64)

    def replace(self, slot: int, numbers: NDArray[Number] | Sequence[float]) -> None:
        """The slot's list becomes `numbers`."""
        self._widen(len(numbers))
        self.values[slot, : len(numbers)] = numbers
        self.counts[slot] = len(numbers)

    def append(self, slots: Indices, numbers: NDArray[Number]) -> None:
        """`numbers[i]` goes to the end of the list of `slots[i]`; a slot may occur several times."""
        order = np.argsort(slots, kind="stable")
        ordered = slots[order]
        firsts = np.searchsorted(ordered, ordered)
        columns = self.counts[ordered] + np.arange(len(ordered)) - firsts
        self._widen(int(columns.max(initial=-1)) + 1)
        self.values[ordered, columns] = numbers[order]
        np.add.at(self.counts, slots, 1)

    def read(self, slots: Indices, starts: Indices, counts: Indices) -> tuple[Indices, NDArray[Number]]:
        """`counts[i]` numbers of `slots[i]` from `starts[i]` on, one after another, as (i of each, number)."""
        owner, columns = ranges(starts, counts)
        return owner, self.values[slots[owner], columns]

    def read_all(self, slots: Indices) -> tuple[Indices, NDArray[Number]]:
        """The whole lists of `slots`, one after another, as (i of each number, number)."""
        return self.read(slots, np.zeros_like(slots), self.counts[slots])

    def _widen(self, width: int) -> None:
        have = self.values.shape[1]
        if width > have:
            self.values = np.pad(self.values, ((0, 0), (0, max(width, 2 * have) - have)))
