"""From the model's logits to tokens and their log-probabilities, on a GPU, in the order of `execution/sampler.py`.

The model's logits stay as they are, for log-probabilities are about them; a float32 copy is changed. All that varies
lies in buffers of fixed sizes, so a CUDA graph can hold the step, and what is put into the buffers before a replay is
what it uses. Restrictions of `execution/restrictions.py` are bitmasks here.

Legend: S rows, V vocabulary, R slots, K bitmasks, W words of 32 ids.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from actorlm.kernels.gpu.bitmask import num_words
from actorlm.kernels.gpu.choose_tokens import Draws, choose_tokens
from actorlm.kernels.gpu.grammar_mask import apply_grammar_mask
from actorlm.kernels.gpu.logit_bias import Biases, add_logit_bias
from actorlm.kernels.gpu.logprobs import Candidates, Wanted, logprobs
from actorlm.kernels.gpu.penalties import Penalties, append_tokens, apply_penalties


@dataclass(frozen=True, slots=True)
class Slots:
    """What the requests in all slots want."""

    draws: Draws
    biases: Biases
    penalties: Penalties
    wanted: Wanted
    allowed_KW: Tensor
    """int32 bitmasks of the tokens that may come."""

    @classmethod
    def empty(cls, slots: int, vocab_size: int, biases: int, by_id: int, device: str = "cpu") -> "Slots":
        """Greedy, without anything else. With room for so many biases and ids to tell of each, and a bitmask."""
        ids_RM = torch.full((slots, by_id), -1, dtype=torch.int32, device=device)
        return cls(
            Draws.greedy(slots, device),
            Biases.none(slots, biases, device),
            Penalties.none(slots, vocab_size, device),
            Wanted(torch.full((slots,), -1, dtype=torch.int32, device=device), ids_RM),
            torch.full((slots, num_words(vocab_size)), -1, dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """The rows of a step: what is put in, and what comes out."""

    slots_S: Tensor
    """int32; -1 is padding."""
    positions_S: Tensor
    """int64; the index of the new token in its sequence."""
    masks_S: Tensor
    """int32; the row's bitmask, -1 for none."""
    work_SV: Tensor
    """float32; the logits as they are changed."""
    tokens_S: Tensor
    """int32; out."""
    best_S: Tensor
    """float32; out. Where it is not finite, the model's logits are not, and the token means nothing."""
    candidates: Candidates
    """Out."""

    @classmethod
    def empty(cls, rows: int, vocab_size: int, most_probable: int, by_id: int, device: str = "cpu") -> "Step":
        """Nothing but padding."""
        none_S = torch.full((rows,), -1, dtype=torch.int32, device=device)
        zeros_S = torch.zeros_like(none_S)
        work_SV = torch.empty(rows, vocab_size, device=device)
        candidates = Candidates.none(rows, most_probable, by_id, device)
        return cls(none_S, zeros_S.long(), none_S.clone(), work_SV, zeros_S, zeros_S.float(), candidates)


def sample_step(logits_SV: Tensor, slots: Slots, step: Step) -> None:
    """Chooses a token for each row of logits [S, V], of any float type, and tells what its slot wants to know of it.

    The slots have the tokens from then on: penalties count them. Slots stand in a step once.
    """
    work_SV = step.work_SV
    assert logits_SV.shape == work_SV.shape, "there are logits for each row"
    work_SV.copy_(logits_SV)
    apply_grammar_mask(work_SV, step.masks_S, slots.allowed_KW)
    add_logit_bias(work_SV, step.slots_S, slots.biases)
    apply_penalties(work_SV, step.slots_S, slots.penalties)
    choose_tokens(work_SV, step.slots_S, step.positions_S, slots.draws, step.tokens_S, step.best_S)
    append_tokens(step.slots_S, step.tokens_S, slots.penalties)
    logprobs(logits_SV, step.slots_S, step.tokens_S, slots.wanted, step.candidates)
