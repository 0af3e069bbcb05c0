"""What passes between the stages of a pipeline: activations to the next one, sampled ids from the last to the first.

Both leave asynchronously: a rank goes on with its next step while they are under way.

Legend: T tokens, E hidden size, S sampled rows.
"""

from collections import deque
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor

from actorlm.errors import PeerMissing
from actorlm.parallel.group import reason, wait
from actorlm.topology import Place

ACTIVATIONS, IDS = 1, 2
"""Tags, which keep apart what one rank sends to another."""


class _Sent(NamedTuple):
    work: Any
    tensor: Tensor
    """Kept until it has left."""


class Arrival:
    """A tensor that is under way."""

    def __init__(self, tensor: Tensor, work: Any, patience: timedelta, what: str) -> None:
        self._tensor, self._work, self._patience, self._what = tensor, work, patience, what

    def wait(self) -> Tensor:
        """The tensor. Raises PeerMissing if it does not come in time."""
        wait(self._work, self._patience, self._what)
        return self._tensor


class PipelineLink:
    """One rank's ties to the stages before and after it, over a process group of all ranks of its replica.

    Tensor rank t of a stage sends to tensor rank t of the next one. The output rank sends ids to every rank of the
    first stage.
    """

    def __init__(self, group: Any, place: Place, patience_s: float) -> None:
        self._group = group
        self._place = place
        self._patience = timedelta(seconds=patience_s)
        self._sent: deque[_Sent] = deque()

    def send(self, x_TE: Tensor) -> None:
        """Sends a copy of the activations to the next stage."""
        self._send(x_TE.clone(), self._place.rank + self._place.tensor_size, ACTIVATIONS)

    def expect(self, num_tokens: int, size: int, dtype: torch.dtype) -> Arrival:
        """The activations [T, E] that the stage before sends."""
        before = self._place.rank - self._place.tensor_size
        return self._expect(torch.empty(num_tokens, size, dtype=dtype), before, ACTIVATIONS)

    def send_ids(self, ids_S: Tensor) -> None:
        """Sends the sampled ids (int32) of a step to the first stage, from the output rank."""
        for rank in range(self._place.tensor_size):
            self._send(ids_S, rank, IDS)

    def receive_ids(self, count: int) -> Tensor:
        """The ids [S] of the earliest step whose ids were not received yet. Waits for them."""
        return self._expect(torch.empty(count, dtype=torch.int32), self._place.output_rank, IDS).wait()

    def _send(self, tensor: Tensor, to: int, tag: int) -> None:
        while self._sent and self._sent[0].work.is_completed():
            self._finish(self._sent.popleft())
        try:
            self._sent.append(_Sent(self._group.send([tensor], to, tag), tensor))
        except RuntimeError as error:
            raise PeerMissing(f"sending to rank {to} failed: {reason(error)}") from error

    def _finish(self, sent: _Sent) -> None:
        wait(sent.work, self._patience, "sending to another stage")

    def _expect(self, tensor: Tensor, source: int, tag: int) -> Arrival:
        what = f"{'ids' if tag == IDS else 'activations'} from rank {source}"
        try:
            work = self._group.recv([tensor], source, tag)
        except RuntimeError as error:
            raise PeerMissing(f"{what} failed: {reason(error)}") from error
        return Arrival(tensor, work, self._patience, what)
