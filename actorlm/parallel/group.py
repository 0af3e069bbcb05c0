"""The ranks that share each layer: what they do together.

All ranks of a group call the same operations in the same order with tensors of the same sizes. `kernels.exchange` does
them through shared memory; `DistributedGroup` through torch.distributed; `Alone` is a group of one.
"""

from datetime import timedelta
from typing import Any, Protocol

from torch import Tensor
from torch import distributed as dist

from actorlm.errors import PeerMissing


class TensorGroup(Protocol):
    """One rank's end of its group."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    @property
    def rank(self) -> int:
        """Of this one among them, from 0."""

    @property
    def launches(self) -> bool:
        """Whether its sums are launches of native kernels, which can be recorded and repeated."""

    def add_reduced(self, total: Tensor, part: Tensor) -> None:
        """Adds to `total` the sum of all ranks' `part`, in place; all ranks get the same bits."""

    def gather(self, mine: Tensor) -> Tensor | None:
        """[rank, ...] of all ranks' tensors for rank 0; None for all others."""

    def spread(self, data: Tensor) -> None:
        """Fills `data` with what rank 0 has, on all others."""

    def check(self) -> None:
        """Raises PeerMissing if a rank was waited for in vain since the group began."""


class Alone:
    """A group of one rank, which has everything."""

    size = 1
    rank = 0
    launches = True

    def add_reduced(self, total: Tensor, part: Tensor) -> None:
        """Adds `part`."""
        total += part

    def gather(self, mine: Tensor) -> Tensor | None:
        """[1, ...]."""
        return mine[None]

    def spread(self, data: Tensor) -> None:
        """Nobody else is there."""

    def check(self) -> None:
        """Nobody is waited for."""


class DistributedGroup:
    """A process group of torch.distributed, of any backend. Raises PeerMissing as soon as a rank fails to come."""

    launches = False

    def __init__(self, group: Any, patience_s: float) -> None:
        self._group = group
        self._patience = timedelta(seconds=patience_s)
        self.size: int = group.size()
        self.rank: int = group.rank()

    def add_reduced(self, total: Tensor, part: Tensor) -> None:
        """Adds to `total` the sum of all ranks' `part`, which is changed."""
        self._wait(self._group.allreduce([part], dist.AllreduceOptions()))
        total += part

    def gather(self, mine: Tensor) -> Tensor | None:
        """[rank, ...] of all ranks' tensors for rank 0."""
        everyones = mine.new_empty(self.size, *mine.shape)
        outputs = [list(everyones.unbind(0))] if self.rank == 0 else []
        self._wait(self._group.gather(outputs, [mine]))
        return everyones if self.rank == 0 else None

    def spread(self, data: Tensor) -> None:
        """Fills `data` with what rank 0 has."""
        self._wait(self._group.broadcast([data], dist.BroadcastOptions()))

    def check(self) -> None:
        """Failures were raised where they happened."""

    def _wait(self, work: Any) -> None:
        wait(work, self._patience, "a collective of the tensor ranks")


def wait(work: Any, patience: timedelta, what: str) -> None:
    """Waits for an operation of torch.distributed. Raises PeerMissing."""
    try:
        work.wait(patience)
    except RuntimeError as error:
        raise PeerMissing(f"{what} failed: {reason(error)}") from error


def reason(error: RuntimeError) -> str:
    """What torch.distributed says, without its advice."""
    return str(error).splitlines()[0].split(". This is typically")[0]
