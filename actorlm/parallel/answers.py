"""The output rank's answer to a step, on all ranks of a job in which each of them drives itself.

Every rank makes the same plans, so it needs the same answers. With an answer comes a digest of the question: ranks that
have parted ways learn it there, instead of waiting for each other.
"""

import zlib
from datetime import timedelta
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch import distributed as dist

from actorlm.errors import ExecutorFailed
from actorlm.messages.executor import StepDone
from actorlm.messages.worker import RunStep
from actorlm.parallel.group import wait
from actorlm.topology import Place

FIRST_BYTES = 4096
"""What is sent of every answer; longer ones take a second message."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StepDone).decode


class Answers:
    """`group` is a process group of all ranks, which share answers in the same order."""

    def __init__(self, group: Any, place: Place, patience_s: float) -> None:
        self._group = group
        self._place = place
        self._patience = timedelta(seconds=patience_s)

    def share(self, step: RunStep, done: StepDone | None) -> StepDone:
        """The answer to a step, which the output rank has, on every rank.

        Raises PeerMissing, and ExecutorFailed if this rank runs another step than the output rank.
        """
        digest = zlib.crc32(_encode(step))
        answer = b"" if done is None else _encode(done)
        head = torch.zeros(2, dtype=torch.int64)
        first = torch.zeros(head.nbytes + FIRST_BYTES, dtype=torch.uint8)
        if self._place.is_output:
            first[: head.nbytes].view(torch.int64).copy_(torch.tensor([digest, len(answer)]))
            _put(first[head.nbytes :], answer[:FIRST_BYTES])
        self._spread(first)
        theirs, length = first[: head.nbytes].view(torch.int64).tolist()
        if theirs != digest:
            raise ExecutorFailed(
                f"rank {self._place.rank} runs another step {step.step} than rank {self._place.output_rank};"
                " all ranks must make the same calls in the same order"
            )
        rest = torch.zeros(max(length - FIRST_BYTES, 0), dtype=torch.uint8)
        if len(rest) > 0:
            _put(rest, answer[FIRST_BYTES:])
            self._spread(rest)
        return done if done is not None else _decode(bytes(torch.cat((first[head.nbytes :], rest))[:length].numpy()))

    def _spread(self, data: Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = self._place.output_rank
        wait(self._group.broadcast([data], options), self._patience, "the answer to a step")


def _put(to: Tensor, answer: bytes) -> None:
    if answer:
        to[: len(answer)].copy_(torch.frombuffer(bytearray(answer), dtype=torch.uint8))
