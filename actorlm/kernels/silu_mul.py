"""The gate of a gated MLP: silu(gate) * up.

Legend: T rows, F features of the intermediate layer.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from actorlm.kernels.native import Native


class Gates:
    """Gate and up of some rows, side by side, and their product if a native kernel makes it; and views, made once."""

    def __init__(self, flat_TX: Tensor, product_TF: Tensor | None, native: Native | None) -> None:
        self.native = native
        self.flat_TX = flat_TX
        self.gate_TF, self.up_TF = flat_TX.chunk(2, dim=-1)
        self.product_TF = product_TF

    @classmethod
    def make(cls, num_rows: int, size: int, dtype: torch.dtype, native: Native | None = None) -> "Gates":
        """Buffers that all layers use in turn."""
        product_TF = None if native is None else torch.empty(num_rows, size)
        return cls(torch.empty(num_rows, 2 * size, dtype=dtype), product_TF, native)

    def first(self, rows: int) -> "Gates":
        """The first rows of these."""
        if rows == len(self.flat_TX):
            return self
        return Gates(self.flat_TX[:rows], None if self.product_TF is None else self.product_TF[:rows], self.native)


def reference(gates: Gates) -> Tensor:
    """See `silu_mul`."""
    return F.silu(gates.gate_TF).mul_(gates.up_TF)


def silu_mul(gates: Gates) -> Tensor:
    """Gives [T, F]. Launches the implementation that the buffer was made for."""
    native, out_TF = gates.native, gates.product_TF
    if native is None or out_TF is None:
        return reference(gates)
    assert gates.flat_TX.dtype is torch.float32, "gates are float32"
    native.launch("silu_mul", native.pool, gates.flat_TX, out_TF, *out_TF.shape)
    return out_TF
