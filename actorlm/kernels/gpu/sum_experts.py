"""The sum of what each token's experts gave, in the order in which they were chosen.

Legend: T tokens, k experts a token, E features.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def reference(y_TkE: Tensor, ids_Tk: Tensor, num_experts: int) -> Tensor:
    """See `sum_experts`."""
    has_expert_Tk = (ids_Tk >= 0) & (ids_Tk < num_experts)
    return torch.where(has_expert_Tk[:, :, None], y_TkE, 0.0).sum(1, dtype=torch.float32).to(y_TkE.dtype)


@triton.jit
def sum_experts_kernel(y_ptr, ids_ptr, out_ptr, num_experts, size, TOP_K: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """BLOCK features of a token."""
    token = tl.program_id(0).to(tl.int64)
    features = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for slot in tl.static_range(TOP_K):
        pair = token * TOP_K + slot
        expert = tl.load(ids_ptr + pair)
        has_expert = (expert >= 0) & (expert < num_experts)
        sums += tl.load(y_ptr + pair * size + features, (features < size) & has_expert, 0.0).to(tl.float32)
    tl.store(out_ptr + token * size + features, sums.to(out_ptr.dtype.element_ty), features < size)


def sum_experts(y_TkE: Tensor, ids_Tk: Tensor, num_experts: int) -> Tensor:
    """[T, E]: the sum over a token's pairs whose id is an expert's; others are not read. Sums are float32."""
    num_tokens, k, size = y_TkE.shape
    assert y_TkE.is_contiguous(), "pairs follow each other"
    assert ids_Tk.shape == (num_tokens, k), "an id for each pair"
    assert ids_Tk.dtype is torch.int32, "ids are int32"
    assert ids_Tk.is_contiguous(), "ids follow each other"
    out_TE = torch.empty(num_tokens, size, dtype=y_TkE.dtype, device=y_TkE.device)
    block = min(triton.next_power_of_2(size), 1024)
    grid = (num_tokens, triton.cdiv(size, block))
    sum_experts_kernel[grid](y_TkE, ids_Tk, out_TE, num_experts, size, TOP_K=k, BLOCK=block)
    return out_TE
