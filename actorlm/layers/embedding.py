"""Token ids to vectors, and vectors to logits. Tensor ranks share the vocabulary.

Legend: T tokens, S sampled rows, E hidden size, v this rank's part of the vocabulary.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from actorlm.kernels.linear import gather_rows, linear, rows_of
from actorlm.layers.arena import Arena
from actorlm.layers.linear import Features
from actorlm.layers.weight import Weight
from actorlm.partition import vocab_share


class Embedding:
    """The vector of each token id."""

    def __init__(self, name: str, vocab_size: int, size: int, arena: Arena) -> None:
        self._name = name
        self._group = arena.group
        self._ids = vocab_share(vocab_size, self._group.size, self._group.rank)
        self._features = Features(vocab_size, self._ids)
        self.weight = arena.matrix(max(len(self._ids), 1), size)  # a rank without ids has a row of zeros

    def parameters(self) -> Iterator[Weight]:
        """The rows to fill."""
        if len(self._ids) > 0:
            yield Weight(f"{self._name}.weight", rows_of(self.weight, 0, len(self._ids)), self._features.cut(0))

    def __call__(self, token_ids_T: Tensor) -> Tensor:
        """The vectors [T, E], as a new tensor."""
        if self._group.size == 1:
            return gather_rows(self.weight, token_ids_T)
        places_T = token_ids_T - self._ids.start
        absent_T = (places_T < 0) | (places_T >= len(self._ids))
        part_TE = gather_rows(self.weight, places_T.masked_fill_(absent_T, 0))
        part_TE.masked_fill_(absent_T[:, None], 0.0)
        total_TE = torch.zeros_like(part_TE)
        self._group.add_reduced(total_TE, part_TE)
        return total_TE

    def logits(self, x_SE: Tensor) -> Tensor:
        """[S, v] of float32: how well each row fits each token's vector. This is what makes an embedding a head."""
        logits_Sv = torch.empty(len(x_SE), self.weight.shape[0], dtype=x_SE.dtype, device=x_SE.device)
        linear(logits_Sv, x_SE, self.weight)
        return logits_Sv[:, : len(self._ids)].float()
