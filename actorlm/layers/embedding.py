"""Token ids to vectors, and vectors to logits.

Legend: T tokens, S sampled rows, E hidden size, V vocabulary.
"""

from collections.abc import Iterator

import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from actorlm.kernels.pages import Arena


class Embedding:
    """The vector of each token id."""

    def __init__(self, name: str, vocab_size: int, size: int, arena: Arena) -> None:
        self._name = name
        self.weight_VE = arena.empty(vocab_size, size)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """(name, the tensor to fill)."""
        yield f"{self._name}.weight", self.weight_VE

    def __call__(self, token_ids_T: Tensor) -> Tensor:
        """The vectors [T, E], as a new tensor."""
        return self.weight_VE.index_select(0, token_ids_T)

    def logits(self, x_SE: Tensor) -> Tensor:
        """[S, V] of float32: how well each row fits each token's vector. This is what makes an embedding a head."""
        return F.linear(x_SE, self.weight_VE).float()
