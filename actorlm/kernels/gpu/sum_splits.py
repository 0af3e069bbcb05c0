"""The sum of the parts of a matrix product, from the first to the last, and the bias.

Legend: S parts, T rows, N outputs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def reference(parts_STN: Tensor, dtype: torch.dtype, bias_N: Tensor | None = None) -> Tensor:
    """See `sum_splits`."""
    sum_TN = parts_STN.sum(0)
    return (sum_TN if bias_N is None else sum_TN + bias_N.float()).to(dtype)


@triton.jit
def sum_splits_kernel(parts_ptr, bias_ptr, out_ptr, numel, size, SPLITS: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """BLOCK numbers of the result."""
    numbers = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = numbers < numel
    sums = tl.load(parts_ptr + numbers, exists, 0.0)
    for split in tl.static_range(1, SPLITS):
        sums += tl.load(parts_ptr + tl.cast(numel, tl.int64) * split + numbers, exists, 0.0)
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + numbers % size, exists, 0.0).to(tl.float32)
    tl.store(out_ptr + numbers, sums.to(out_ptr.dtype.element_ty), exists)


def check_bias(bias_N: Tensor | None, size: int) -> None:
    """Asserts what every product relies on."""
    assert bias_N is None or bias_N.shape == (size,), "a bias for each output"
    assert bias_N is None or bias_N.is_contiguous(), "biases follow each other"


def empty_result(splits: int, rows: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What a product writes to: the result [T, N], or the parts [S, T, N] of it that are to be summed."""
    if splits == 1:
        return torch.empty(rows, size, dtype=dtype, device=device)
    return torch.empty(splits, rows, size, dtype=torch.float32, device=device)


def sum_splits(parts_STN: Tensor, dtype: torch.dtype, bias_N: Tensor | None = None) -> Tensor:
    """[T, N] in `dtype`. The parts are float32, the bias has any float type; all is added in float32."""
    splits, num_rows, size = parts_STN.shape
    assert parts_STN.dtype is torch.float32, "parts are float32"
    assert parts_STN.is_contiguous(), "parts follow each other"
    assert num_rows * size < 2**31, "the result's numbers have offsets of 31 bits"
    check_bias(bias_N, size)
    out_TN = torch.empty(num_rows, size, dtype=dtype, device=parts_STN.device)
    grid = (triton.cdiv(num_rows * size, 1024),)
    sum_splits_kernel[grid](parts_STN, bias_N, out_TN, num_rows * size, size, SPLITS=splits, BLOCK=1024)
    return out_TN
