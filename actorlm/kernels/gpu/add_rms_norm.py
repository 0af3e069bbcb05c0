"""Root-mean-square normalisation of each row, and the same fused with the addition to the residual before it.

Legend: T rows, E features.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from actorlm.kernels.gpu.attention import TYPES

MOST_FEATURES = 16_384


def reference(x_TE: Tensor, residual_TE: Tensor | None, weight_E: Tensor, eps: float) -> Tensor:
    """See `add_rms_norm`."""
    if residual_TE is not None:
        x_TE = residual_TE.copy_((x_TE.float() + residual_TE.float()).to(x_TE.dtype))
    x_TE = x_TE.float()
    normed_TE = x_TE / torch.sqrt((x_TE**2).mean(-1, keepdim=True) + eps)
    return normed_TE.to(weight_E.dtype) * weight_E


@triton.jit
def add_rms_norm_kernel(
    out_ptr, x_ptr, residual_ptr, weight_ptr, eps, x_stride, E: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """See `add_rms_norm`. A program has one row; BLOCK is E padded to a power of 2."""
    row, e_E = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    x_E = tl.load(x_ptr + row * x_stride + e_E, mask=e_E < E, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        x_E += tl.load(residual_ptr + row * E + e_E, mask=e_E < E, other=0.0).to(tl.float32)
        rounded_E = x_E.to(dtype)
        tl.store(residual_ptr + row * E + e_E, rounded_E, mask=e_E < E)
        x_E = rounded_E.to(tl.float32)
    normed_E = x_E * tl.rsqrt(tl.sum(x_E * x_E, 0) / E + eps)
    weight_E = tl.load(weight_ptr + e_E, mask=e_E < E, other=0.0).to(tl.float32)
    out_E = normed_E.to(dtype).to(tl.float32) * weight_E
    tl.store(out_ptr + row * E + e_E, out_E.to(dtype), mask=e_E < E)


def warps(features: int) -> int:
    """So that a thread has 16 features or fewer, where 16 warps suffice for that."""
    return max(1, min(16, int(triton.next_power_of_2(features)) // 512))


def _launch(x_TE: Tensor, residual_TE: Tensor | None, weight_E: Tensor, eps: float) -> Tensor:
    rows, size = x_TE.shape
    assert weight_E.shape == (size,), "one weight for each feature"
    assert x_TE.dtype is weight_E.dtype, "a model has one dtype"
    assert x_TE.dtype in TYPES, "rows are float32, float16 or bfloat16"
    assert x_TE.stride(1) == 1, "features of a row follow each other"
    assert weight_E.is_contiguous(), "weights follow each other"
    assert size <= MOST_FEATURES, f"a row has {MOST_FEATURES} features at most"
    out_TE = torch.empty(rows, size, dtype=x_TE.dtype, device=x_TE.device)
    add_rms_norm_kernel[(rows,)](
        out_TE, x_TE, residual_TE, weight_E, eps, x_TE.stride(0), size, triton.next_power_of_2(size),
        num_warps=warps(size),
    )  # fmt: skip
    return out_TE


def rms_norm(x_TE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x**2) + eps) * weight`; computed in float32, and rounded before the weight is applied.

    Rows may lie apart.
    """
    return _launch(x_TE, None, weight_E, eps)


def add_rms_norm(x_TE: Tensor, residual_TE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
    """Adds `x` to the residual, in place, and gives `rms_norm` of the sum as it was rounded."""
    assert residual_TE.shape == x_TE.shape, "a residual for each number"
    assert residual_TE.dtype is x_TE.dtype, "a model has one dtype"
    assert residual_TE.is_contiguous(), "rows of the residual follow each other"
    return _launch(x_TE, residual_TE, weight_E, eps)
