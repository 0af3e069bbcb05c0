"""Token ids to vectors, and vectors to logits.

Legend: T tokens, S sampled rows, E hidden size, V vocabulary.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from actorlm.kernels.linear import PackedRows, gather_rows, linear, rows_of
from actorlm.kernels.pages import Arena


class Embedding:
    """The vector of each token id."""

    def __init__(self, name: str, vocab_size: int, size: int, arena: Arena) -> None:
        self._name = name
        self._vocab_size = vocab_size
        self.weight = arena.matrix(vocab_size, size)

    def parameters(self) -> Iterator[tuple[str, Tensor | PackedRows]]:
        """(name, the rows to fill)."""
        yield f"{self._name}.weight", rows_of(self.weight, 0, self._vocab_size)

    def __call__(self, token_ids_T: Tensor) -> Tensor:
        """The vectors [T, E], as a new tensor."""
        return gather_rows(self.weight, token_ids_T)

    def logits(self, x_SE: Tensor) -> Tensor:
        """[S, V] of float32: how well each row fits each token's vector. This is what makes an embedding a head."""
        logits_SV = torch.empty(len(x_SE), self._vocab_size, dtype=x_SE.dtype)
        linear(logits_SV, x_SE, self.weight)
        return logits_SV.float()
