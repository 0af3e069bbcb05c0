"""The gate of a gated MLP: silu(gate) * up, which lie side by side in a row.

Legend: T rows, F features of the intermediate layer, X = 2 F.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from actorlm.kernels.gpu.attention import TYPES

BLOCK = 1024


def reference(x_TX: Tensor) -> Tensor:
    """See `silu_mul`."""
    gate_TF, up_TF = x_TX.float().chunk(2, -1)
    return (gate_TF * torch.sigmoid(gate_TF) * up_TF).to(x_TX.dtype)


@triton.jit
def silu_mul_kernel(out_ptr, x_ptr, F: tl.constexpr, BLOCK: tl.constexpr):
    """See `silu_mul`. A program has BLOCK features of one row."""
    row, f_F = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate_F = tl.load(x_ptr + row * 2 * F + f_F, mask=f_F < F, other=0.0).to(tl.float32)
    up_F = tl.load(x_ptr + row * 2 * F + F + f_F, mask=f_F < F, other=0.0).to(tl.float32)
    out_F = gate_F / (1.0 + tl.exp(-gate_F)) * up_F
    tl.store(out_ptr + row * F + f_F, out_F.to(out_ptr.dtype.element_ty), mask=f_F < F)


def silu_mul(x_TX: Tensor) -> Tensor:
    """Gives [T, F]; computed in float32, and rounded once."""
    rows, both = x_TX.shape
    assert both % 2 == 0, "an up for each gate"
    assert x_TX.dtype in TYPES, "gates are float32, float16 or bfloat16"
    assert x_TX.is_contiguous(), "rows follow each other"
    size = both // 2
    out_TF = torch.empty(rows, size, dtype=x_TX.dtype, device=x_TX.device)
    silu_mul_kernel[rows, triton.cdiv(size, BLOCK)](out_TF, x_TX, size, BLOCK, num_warps=4)
    return out_TF
