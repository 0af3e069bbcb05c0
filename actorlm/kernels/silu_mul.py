"""The gate of a gated MLP: silu(gate) * up.

Legend: T rows, F features of the intermediate layer.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from actorlm.kernels.native import Native


class Gates:
    """Gate and up of one layer, side by side, and their product if a native kernel makes it.

    Buffers that all layers use in turn, and their views, made once.
    """

    def __init__(self, num_rows: int, size: int, dtype: torch.dtype, native: Native | None = None) -> None:
        self.native = native
        self.flat_TX = torch.empty(num_rows, 2 * size, dtype=dtype)
        self.gate_TF, self.up_TF = self.flat_TX.chunk(2, dim=-1)
        self.product_TF = None if native is None else torch.empty(num_rows, size)


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
