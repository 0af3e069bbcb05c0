"""Ids that are sampled on the last pipeline stage, as a stage before it keeps them: unknown at first.

Only the first stage needs the ids; it is sent those of each step that samples, and takes them in when a row needs one,
at the latest when as many steps have followed as there are stages. A row of a plan never waits for more than the steps
in flight before it.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from actorlm.execution.batch import UNKNOWN, Batch, Slots
from actorlm.execution.ragged import Indices

Receive = Callable[[int], NDArray[np.int32]]


class _Awaited(NamedTuple):
    step: int
    slots: Indices
    positions: Indices
    entries: Indices
    """A slot that another request has entered since keeps its own ids."""


class LateIds:
    """Ids under way to one rank. `receive(count)` gives those of the earliest step; None where they are not needed."""

    def __init__(self, slots: Slots, stages: int, receive: Receive | None) -> None:
        self._slots = slots
        self._stages = stages
        self._receive = receive
        self._awaited: deque[_Awaited] = deque()

    def await_ids(self, step: int, batch: Batch) -> None:
        """The batch's sampled slots grow by a token that is not known yet."""
        slots = batch.sampled_slots
        if len(slots) == 0:
            return
        self._slots.append(slots, np.full(len(slots), UNKNOWN, np.int32))
        if self._receive is not None:
            self._awaited.append(_Awaited(step, slots, batch.sampled_positions, self._slots.entries[slots]))

    def complete(self, step: int, batch: Batch) -> Batch:
        """The batch of this step with all of its ids. Waits for what is under way."""
        if self._receive is None:
            return batch
        while self._awaited and (self._awaited[0].step <= step - self._stages or _is_incomplete(batch)):
            self._take()
            batch = self._slots.read(batch)
        assert not _is_incomplete(batch), "an id that nobody sends"
        return batch

    def _take(self) -> None:
        assert self._receive is not None, "only who needs ids awaits them"
        awaited = self._awaited.popleft()
        ids = self._receive(len(awaited.slots))
        same = self._slots.entries[awaited.slots] == awaited.entries
        self._slots.tokens.values[awaited.slots[same], awaited.positions[same]] = ids[same]


def _is_incomplete(batch: Batch) -> bool:
    return bool((batch.token_ids == UNKNOWN).any())
