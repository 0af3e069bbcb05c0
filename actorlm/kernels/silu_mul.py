"""The gate of a gated MLP: silu(gate) * up, where gate and up lie side by side.

Legend: T rows, F features of the intermediate layer.
"""

import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor


def reference(gate_up_T2F: Tensor) -> Tensor:
    """[T, F] from [T, 2 F]: the first half is the gate."""
    size = gate_up_T2F.shape[-1] // 2
    return F.silu(gate_up_T2F[:, :size]).mul_(gate_up_T2F[:, size:])


def silu_mul(gate_up_T2F: Tensor) -> Tensor:
    """Launches the implementation for the tensor's device: plain torch on all of them."""
    assert gate_up_T2F.shape[-1] % 2 == 0, "gate and up are of equal width"
    return reference(gate_up_T2F)
