"""The next tokens of a step, and what is known of them, from logits that the tensor ranks have shares of.

A row that takes the highest logit as it is needs one candidate from each rank. Any other row, and those that score
prompts, come whole to rank 0 of the group, which chooses; in the end all ranks have all tokens.

Legend: S sampled rows, N positions of prompts that are scored, V vocabulary, v this rank's part of it, R some rows.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actorlm.execution.batch import Batch
from actorlm.execution.ragged import Indices, Ragged
from actorlm.execution.sampler import NO_IDS, Sampler, check_finite
from actorlm.execution.scoring import PromptPart, Scoring
from actorlm.kernels.choose_tokens import Draws, choose_tokens
from actorlm.kernels.native import Native
from actorlm.logprobs import Logprobs
from actorlm.messages.worker import AddRequest
from actorlm.parallel.group import TensorGroup
from actorlm.partition import vocab_share

Tokens = NDArray[np.int32]
OUT = float("-inf")


class Choice:
    """Sampler and scoring of one rank's slots. Only rank 0 of a group gives log-probabilities."""

    def __init__(
        self,
        max_num_seqs: int,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        group: TensorGroup,
        native: Native | None,
    ) -> None:
        self._sampler = Sampler(max_num_seqs, eos_token_ids, native)
        self._scoring = Scoring(max_num_seqs)
        self._group = group
        self._native = native
        self._vocab_size = vocab_size
        self._ids = vocab_share(vocab_size, group.size, group.rank)

    def put(self, request: AddRequest) -> None:
        """A request enters its slot."""
        ids = np.frombuffer(request.token_ids, np.int32)
        prompt, generated = ids[: request.prompt_length], ids[request.prompt_length :]
        self._sampler.put(request.slot, request.sampling, prompt, generated)
        self._scoring.put(request.slot, request.sampling, len(prompt), len(generated))

    def prompt_parts(self, batch: Batch, tokens: Ragged[np.int32]) -> list[PromptPart]:
        """What the step's rows compute of prompts that are scored: their logits follow those of sampled rows."""
        return self._scoring.prompt_parts(batch, tokens)

    def choose(self, batch: Batch, parts: list[PromptPart], logits: Tensor) -> tuple[Tokens, Logprobs | None]:
        """The tokens [S] and scores of a step with float32 `logits` [S + N, v], which are changed."""
        count = len(batch.sampled_slots)
        if self._group.size == 1:
            return self._choose(batch, np.arange(count), parts, logits)
        plain = self._sampler.takes_highest(batch.sampled_slots) & ~self._scoring.scores_output(batch.sampled_slots)
        best, whole = np.flatnonzero(plain), np.flatnonzero(~plain)
        tokens = np.zeros(count, np.int32)
        if len(best) > 0:
            tokens[best] = self._highest(logits[torch.from_numpy(best)])
        chosen, logprobs = self._gather_and_choose(batch, whole, parts, logits)
        tokens[whole] = chosen
        if count > 0:
            self._group.spread(torch.from_numpy(tokens))
        return tokens, logprobs

    def _highest(self, logits_Rv: Tensor) -> Tokens:
        """The ids [R] of the highest logits of all ranks, the lowest of equals. They mean something on rank 0."""
        candidates_R2 = torch.full((len(logits_Rv), 2), OUT)
        if len(self._ids) > 0:
            ids, values = choose_tokens(logits_Rv, Draws.greedy(len(logits_Rv)), self._native)
            candidates_R2[:, 0] = torch.from_numpy(values)
            candidates_R2[:, 1].view(torch.int32).copy_(torch.from_numpy(ids + self._ids.start))
        everyones = self._group.gather(candidates_R2)
        if everyones is None:
            return np.zeros(len(logits_Rv), np.int32)
        values_rR = everyones[..., 0].numpy()
        winners = values_rR.argmax(axis=0)
        rows = np.arange(len(winners))
        check_finite(values_rR[winners, rows])
        ids_rR = everyones[..., 1].contiguous().view(torch.int32).numpy()
        chosen: Tokens = ids_rR[winners, rows]
        return chosen

    def _gather_and_choose(
        self, batch: Batch, rows: Indices, parts: list[PromptPart], logits: Tensor
    ) -> tuple[Tokens, Logprobs | None]:
        """The tokens of some sampled rows, and all scores, on rank 0."""
        count = len(batch.sampled_slots)
        wanted = np.concatenate((rows, np.arange(count, len(logits))))
        if len(wanted) == 0:
            return NO_IDS, None
        each = len(vocab_share(self._vocab_size, self._group.size, 0))
        mine = torch.full((len(wanted), each), OUT)
        mine[:, : len(self._ids)] = logits[torch.from_numpy(wanted)]
        everyones = self._group.gather(mine)
        if everyones is None:
            return np.zeros(len(rows), np.int32), None
        whole = everyones.transpose(0, 1).reshape(len(wanted), -1)[:, : self._vocab_size].contiguous()
        return self._choose(batch, rows, parts, whole)

    def _choose(
        self, batch: Batch, rows: Indices, parts: list[PromptPart], logits: Tensor
    ) -> tuple[Tokens, Logprobs | None]:
        """The tokens of some sampled rows, and all scores, from logits of the whole vocabulary."""
        logits_SV, logits_NV = logits[: len(rows)], logits[len(rows) :]
        raw = self._scoring.raw(logits_SV, batch.sampled_slots[rows])
        tokens = NO_IDS
        if len(rows) > 0:
            tokens = self._sampler.sample(
                logits_SV, batch.sampled_slots[rows], batch.sampled_positions[rows], batch.generated[rows]
            )
        return tokens, self._scoring.score(chosen_rows(batch, rows), raw, tokens, parts, logits_NV)


def chosen_rows(batch: Batch, rows: Indices) -> Batch:
    """The batch with these of its sampled rows alone."""
    return replace(batch, sampled_rows=batch.sampled_rows[rows], sampled_slots=batch.sampled_slots[rows])
