"""What a worker remembers of its slots, and how a RunStep becomes index arrays. numpy only.

Owns, per slot: the token ids known so far, the prompt's length, the block table, how far the KV cache is filled. A plan
that contradicts any of it raises ProtocolError before a tensor is touched; the slots are then as far as the plan made
sense, and the runner must not be used again. There is no Python loop over rows, blocks or tokens; one over the
requests that a step adds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from actorlm.config import BLOCK_SIZE
from actorlm.errors import ProtocolError
from actorlm.execution.ragged import Indices, Ragged, ranges
from actorlm.messages.worker import AddRequest, RunStep

NOT_COMPUTED = -1
UNKNOWN = -1
"""Stands for an id that was sampled on another pipeline stage and has not come yet."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step: R rows, T tokens of all rows one after another, S sampled rows. All int64."""

    slots: Indices
    """[R] the rows' slots."""
    starts: Indices
    """[R] position of the first token that each row computes."""
    counts: Indices
    """[R] number of tokens that each row computes."""
    token_ids: Indices
    """[T]"""
    positions: Indices
    """[T] index of each token in its sequence."""
    blocks: Indices
    """[T] block that each token's key and value go to, at offset `positions % 16`."""
    sampled_rows: Indices
    """[S] rows that get a token."""
    sampled_slots: Indices
    """[S] slots that get a token."""
    sampled_tokens: Indices
    """[S] index among the T tokens of the last one of each sampled row."""
    sampled_positions: Indices
    """[S] index in its sequence of the token to be sampled."""
    generated: Indices
    """[S] tokens generated so far."""


class Slots:
    """The slots of one worker."""

    def __init__(
        self, *, max_num_seqs: int, max_model_len: int, max_num_batched_tokens: int, num_blocks: int, vocab_size: int
    ) -> None:
        self._max_model_len = max_model_len
        self._max_num_batched_tokens = max_num_batched_tokens
        self._num_blocks = num_blocks
        self._vocab_size = vocab_size
        self.tokens = Ragged(max_num_seqs, np.int32)
        self.tables = Ragged(max_num_seqs, np.int32)
        self._prompts: Indices = np.zeros(max_num_seqs, np.int64)
        self._computed: Indices = np.full(max_num_seqs, NOT_COMPUTED, np.int64)
        self._taken: NDArray[np.bool_] = np.zeros(max_num_seqs, np.bool_)
        self.entries: Indices = np.zeros(max_num_seqs, np.int64)
        """How many requests have entered each slot."""

    def apply(self, step: RunStep) -> Batch:
        """Brings the slots up to date and lays out the step's rows. Raises ProtocolError for a wrong plan."""
        self._release(_column(step.released))
        for request in step.added:
            self._add(request)
        self._append_blocks(_column(step.block_slots), _column(step.block_ids))
        rows = _column(step.slots), _column(step.starts), _column(step.counts)
        self._check_rows(*rows)
        sampled = _column(step.sampled)
        self._check_sampled(sampled, *rows)
        batch = self._lay_out(sampled, *rows)
        self._check_writes(batch)
        self._computed[batch.slots] = batch.starts + batch.counts
        return batch

    def append(self, slots: Indices, token_ids: NDArray[np.int32]) -> None:
        """The slots grow by the tokens sampled from them."""
        self.tokens.append(slots, token_ids)

    def read(self, batch: Batch) -> Batch:
        """The batch with the token ids that the slots have now."""
        row, positions = ranges(batch.starts, batch.counts)
        return replace(batch, token_ids=self.tokens.values[batch.slots[row], positions].astype(np.int64))

    def _release(self, slots: Indices) -> None:
        if len(slots) == 0:
            return
        self._check_taken(slots, "released")
        _refuse(_repeated(slots), lambda i: f"slot {slots[i]} is released twice")
        self._taken[slots] = False

    def _add(self, request: AddRequest) -> None:
        slot, ids = request.slot, np.frombuffer(request.token_ids, np.int32)
        if not 0 <= slot < len(self._taken) or self._taken[slot]:
            raise ProtocolError(f"a request enters slot {slot}, which is taken or is not one of {len(self._taken)}")
        if not 1 <= request.prompt_length <= len(ids) <= self._max_model_len:
            raise ProtocolError(
                f"slot {slot} gets {len(ids)} ids, {request.prompt_length} of them prompt; {self._max_model_len} fit"
            )
        if ids.min() < 0 or ids.max() >= self._vocab_size:
            raise ProtocolError(f"slot {slot} gets ids up to {ids.max()}, but there are {self._vocab_size}")
        self.tokens.replace(slot, ids)
        self.tables.counts[slot] = 0
        self._prompts[slot] = request.prompt_length
        self._computed[slot] = NOT_COMPUTED
        self._taken[slot] = True
        self.entries[slot] += 1

    def _append_blocks(self, slots: Indices, blocks: Indices) -> None:
        _same_length("block_slots", slots, "block_ids", blocks)
        if len(slots) == 0:
            return
        self._check_taken(slots, "given a block")
        _refuse(
            (blocks < 0) | (blocks >= self._num_blocks),
            lambda i: f"slot {slots[i]} gets block {blocks[i]} of {self._num_blocks}",
        )
        self.tables.append(slots, blocks.astype(np.int32))

    def _check_taken(self, slots: Indices, verb: str) -> None:
        _refuse((slots < 0) | (slots >= len(self._taken)), lambda i: f"slot {slots[i]} of {len(self._taken)} is {verb}")
        _refuse(~self._taken[slots], lambda i: f"slot {slots[i]} is {verb} but empty")

    def _check_rows(self, slots: Indices, starts: Indices, counts: Indices) -> None:
        _same_length("slots", slots, "starts", starts)
        _same_length("slots", slots, "counts", counts)
        self._check_taken(slots, "computed")
        _refuse(_repeated(slots), lambda i: f"slot {slots[i]} has two rows")
        ends, computed, lengths = starts + counts, self._computed[slots], self.tokens.counts[slots]
        _refuse(
            (counts < 1) | (starts < 0) | ((computed != NOT_COMPUTED) & (starts != computed)),
            lambda i: f"slot {slots[i]} computes [{starts[i]}, {ends[i]}) after {computed[i]} tokens",
        )
        _refuse(ends > lengths, lambda i: f"slot {slots[i]} computes to {ends[i]} of {lengths[i]} known ids")
        room = self.tables.counts[slots] * BLOCK_SIZE
        _refuse(ends > room, lambda i: f"slot {slots[i]} computes to {ends[i]}; its blocks have room for {room[i]}")
        if counts.sum() > self._max_num_batched_tokens:
            raise ProtocolError(
                f"the step has {counts.sum()} tokens; at most {self._max_num_batched_tokens} were agreed"
            )

    def _check_sampled(self, sampled: Indices, slots: Indices, starts: Indices, counts: Indices) -> None:
        if (np.diff(sampled) < 1).any() or (sampled < 0).any() or (sampled >= len(slots)).any():
            raise ProtocolError(f"sampled is {sampled.tolist()}; it must be ascending rows of {len(slots)}")
        ends, lengths = (starts + counts)[sampled], self.tokens.counts[slots[sampled]]
        _refuse(
            (ends != lengths) | (ends >= self._max_model_len),
            lambda i: (
                f"slot {slots[sampled[i]]} samples at {ends[i]} of {lengths[i]} ids (at most {self._max_model_len})"
            ),
        )

    def _lay_out(self, sampled: Indices, slots: Indices, starts: Indices, counts: Indices) -> Batch:
        row, positions = ranges(starts, counts)
        sampled_slots = slots[sampled]
        lengths = self.tokens.counts[sampled_slots]
        return Batch(
            slots=slots,
            starts=starts,
            counts=counts,
            token_ids=self.tokens.values[slots[row], positions].astype(np.int64),
            positions=positions,
            blocks=self.tables.values[slots[row], positions // BLOCK_SIZE].astype(np.int64),
            sampled_rows=sampled,
            sampled_slots=sampled_slots,
            sampled_tokens=(np.cumsum(counts) - 1)[sampled],
            sampled_positions=lengths,
            generated=lengths - self._prompts[sampled_slots],
        )

    def _check_writes(self, batch: Batch) -> None:
        places = batch.blocks * BLOCK_SIZE + batch.positions % BLOCK_SIZE
        _refuse(_repeated(places), lambda i: f"two tokens are written to block {batch.blocks[i]}")


def _column(column: bytes) -> Indices:
    if len(column) % 4:
        raise ProtocolError(f"a column of {len(column)} bytes holds no int32 numbers")
    return np.frombuffer(column, np.int32).astype(np.int64)


def _same_length(name: str, column: Indices, other_name: str, other: Indices) -> None:
    if len(column) != len(other):
        raise ProtocolError(f"{name} has {len(column)} entries and {other_name} {len(other)}")


def _repeated(numbers: Indices) -> NDArray[np.bool_]:
    """True at every number that stands elsewhere too."""
    ordered = np.sort(numbers)
    if not (ordered[1:] == ordered[:-1]).any():
        return np.zeros(len(numbers), np.bool_)
    _, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    repeated: NDArray[np.bool_] = counts[inverse] > 1
    return repeated


def _refuse(wrong: NDArray[np.bool_], say: Callable[[int], str]) -> None:
    if wrong.any():
        raise ProtocolError(f"wrong plan: {say(int(wrong.argmax()))}")
