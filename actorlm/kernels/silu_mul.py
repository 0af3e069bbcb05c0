"""The gate of a gated MLP: silu(gate) * up.

Legend: T rows, F features of the intermediate layer.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from actorlm.kernels.backend import Backend, Gpu
from actorlm.kernels.native import Native


class Gates:
    """Gate and up of some rows, side by side, and their product if a native kernel makes it; and views, made once."""

    def __init__(self, flat_TX: Tensor, product_TF: Tensor | None, backend: Backend) -> None:
        self.backend = backend
        self.flat_TX = flat_TX
        self.gate_TF, self.up_TF = flat_TX.chunk(2, dim=-1)
        self.product_TF = product_TF

    @classmethod
    def make(cls, num_rows: int, size: int, dtype: torch.dtype, backend: Backend = None) -> "Gates":
        """Buffers that all layers use in turn."""
        product_TF = torch.empty(num_rows, size) if isinstance(backend, Native) else None
        device = backend.device if isinstance(backend, Gpu) else None
        return cls(torch.empty(num_rows, 2 * size, dtype=dtype, device=device), product_TF, backend)

    def first(self, rows: int) -> "Gates":
        """The first rows of these."""
        if rows == len(self.flat_TX):
            return self
        return Gates(self.flat_TX[:rows], None if self.product_TF is None else self.product_TF[:rows], self.backend)


def reference(gates: Gates) -> Tensor:
    """See `silu_mul`."""
    return F.silu(gates.gate_TF).mul_(gates.up_TF)


def silu_mul(gates: Gates) -> Tensor:
    """Gives [T, F]. Launches the implementation that the buffer was made for."""
    native, out_TF = gates.backend, gates.product_TF
    if isinstance(native, Gpu):
        from actorlm.kernels.gpu.silu_mul import silu_mul as launch  # noqa: PLC0415 - needs Triton

        return launch(gates.flat_TX)
    if native is None or out_TF is None:
        return reference(gates)
    assert gates.flat_TX.dtype is torch.float32, "gates are float32"
    native.launch("silu_mul", native.pool, gates.flat_TX, out_TF, *out_TF.shape)
    return out_TF
