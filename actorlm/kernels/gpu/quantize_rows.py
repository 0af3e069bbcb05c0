"""Rows of activations in 8 bits, each with a scale that fits what is in it.

Legend: T rows, E features, G groups of features.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The largest number of a row becomes this one."""
LEAST = 1e-30
"""What is smaller counts as this, so that a row of zeros has a scale."""


def reference(x_TE: Tensor, dtype: torch.dtype, group: int | None = None) -> tuple[Tensor, Tensor]:
    """See `quantize_rows`."""
    x_TGe = x_TE.float().unflatten(1, (-1, group or x_TE.shape[1]))
    scales_TG1 = x_TGe.abs().amax(-1, keepdim=True).clamp(min=LEAST) / MOST[dtype]
    q_TE = (x_TGe * (1.0 / scales_TG1)).flatten(1)
    scales_TG = scales_TG1.squeeze(-1)
    return (q_TE.round() if dtype is torch.int8 else q_TE).to(dtype), scales_TG if group else scales_TG.squeeze(1)


@triton.jit
def quantize_rows_kernel(
    x_ptr,
    q_ptr,
    scales_ptr,
    num_rows,
    size,
    x_stride,
    LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
    INTEGER: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """ROWS rows a program, BLOCK features at a time."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    features = tl.arange(0, BLOCK)
    x_at = x_ptr + rows.to(tl.int64)[:, None] * x_stride + features[None, :]
    q_at = q_ptr + rows.to(tl.int64)[:, None] * size + features[None, :]
    largest = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(0, size, BLOCK):
        exists = (rows < num_rows)[:, None] & (first + features < size)[None, :]
        largest = tl.maximum(largest, tl.abs(tl.load(x_at + first, exists, 0.0).to(tl.float32)))
    scales = tl.div_rn(tl.maximum(tl.max(largest, axis=1), SMALLEST), LARGEST)
    tl.store(scales_ptr + rows, scales, rows < num_rows)
    inverse = tl.div_rn(1.0, scales)[:, None]
    for first in range(0, size, BLOCK):
        exists = (rows < num_rows)[:, None] & (first + features < size)[None, :]
        q = tl.load(x_at + first, exists, 0.0).to(tl.float32) * inverse
        if INTEGER:
            # Beyond 2**23 a float32 has no fraction: the addition rounds, half to even.
            q = (q + 12582912.0) - 12582912.0
        tl.store(q_at + first, q.to(q_ptr.dtype.element_ty), exists)


def quantize_rows(x_TE: Tensor, dtype: torch.dtype, group: int | None = None) -> tuple[Tensor, Tensor]:
    """`x` as int8 or float8_e4m3fn [T, E], and float32 scales by which to multiply it again: [T].

    With `group` each `group` features of a row have a scale: [T, G]. The scale makes the largest number 127 or 448.
    int8 is rounded half to even. `x` has any float type.
    """
    assert x_TE.is_floating_point(), "what is quantized are floats"
    assert x_TE.stride(1) == 1, "a row's features follow each other"
    num_rows, size = x_TE.shape
    q_TE = torch.empty(num_rows, size, dtype=dtype, device=x_TE.device)
    scales_T = torch.empty(num_rows, dtype=torch.float32, device=x_TE.device)
    if group is None:
        _launch(x_TE, q_TE, scales_T)
        return q_TE, scales_T
    assert size % group == 0, "a row is a number of whole groups"
    assert x_TE.is_contiguous(), "groups follow each other"
    scales_TG = torch.empty(num_rows, size // group, dtype=torch.float32, device=x_TE.device)
    _launch(x_TE.view(-1, group), q_TE.view(-1, group), scales_TG.view(-1))
    return q_TE, scales_TG


def _launch(x_TE: Tensor, q_TE: Tensor, scales_T: Tensor) -> None:
    num_rows, size = x_TE.shape
    if not num_rows:
        return
    block = min(triton.next_power_of_2(size), 2048)
    rows = max(1, 512 // block)
    quantize_rows_kernel[(triton.cdiv(num_rows, rows),)](
        x_TE,
        q_TE,
        scales_T,
        num_rows,
        size,
        x_TE.stride(0),
        LARGEST=MOST[q_TE.dtype],
        SMALLEST=LEAST,
        INTEGER=q_TE.dtype is torch.int8,
        ROWS=rows,
        BLOCK=block,
        num_warps=4,
        enable_fp_fusion=False,  # it would fuse the product with the addition that rounds
    )
