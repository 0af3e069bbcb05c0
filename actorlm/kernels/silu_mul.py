"""The gate of a gated MLP: silu(gate) * up.

Legend: T rows, F features of the intermediate layer.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from actorlm.kernels.native import Native


class Gates:
    """Gate and up of one layer, side by side: a buffer that all layers use in turn, and its views, made once."""

    def __init__(self, num_rows: int, size: int, dtype: torch.dtype, native: Native | None = None) -> None:
        self.native = native
        self.flat_TX = torch.empty(num_rows, 2 * size, dtype=dtype)
        self.gate_TF, self.up_TF = self.flat_TX.chunk(2, dim=-1)


def reference(gates: Gates) -> Tensor:
    """See `silu_mul`."""
    return F.silu(gates.gate_TF).mul_(gates.up_TF)


def silu_mul(gates: Gates) -> Tensor:
    """Gives [T, F]. Launches the implementation that the buffer was made for."""
    if gates.native is None:
        return reference(gates)
    assert gates.flat_TX.dtype is torch.float32, "gates are float32"
    out_TF = torch.empty_like(gates.gate_TF, memory_format=torch.contiguous_format)
    gates.native.library.silu_mul(gates.native.pool, gates.flat_TX.data_ptr(), out_TF.data_ptr(), *out_TF.shape)
    return out_TF
