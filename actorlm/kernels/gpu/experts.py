"""The experts of a mixture: gate and up, silu(gate) * up, down, and each token's weighted sum.

Five launches of sizes that follow from the number of tokens alone: a CUDA graph can hold them. The same input gives the
same bits, since nothing is added in an order that varies.

Legend: T tokens, k experts a token, X experts, E features, F features of the intermediate layer, G = 2 F gates and ups.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from actorlm.kernels.gpu.grouped_matmul import block_for, grouped_matmul
from actorlm.kernels.gpu.moe_align import moe_align
from actorlm.kernels.gpu.sum_experts import sum_experts


def reference(x_TE: Tensor, gate_up_XGE: Tensor, down_XEF: Tensor, weights_Tk: Tensor, ids_Tk: Tensor) -> Tensor:
    """See `experts`. Every expert sees all tokens, in float32."""
    out_TE = torch.zeros(x_TE.shape, device=x_TE.device)
    for expert, (gate_up_GE, down_EF) in enumerate(zip(gate_up_XGE, down_XEF, strict=True)):
        gate_TF, up_TF = (x_TE.float() @ gate_up_GE.float().T).chunk(2, dim=-1)
        y_TE = (F.silu(gate_TF) * up_TF) @ down_EF.float().T
        out_TE += y_TE * torch.where(ids_Tk == expert, weights_Tk, 0.0).sum(-1, keepdim=True)
    return out_TE.to(x_TE.dtype)


def experts(
    x_TE: Tensor,
    gate_up_XGE: Tensor,
    down_XEF: Tensor,
    weights_Tk: Tensor,
    ids_Tk: Tensor,
    *,
    block: int | None = None,
) -> Tensor:
    """[T, E]: the sum of `weights[t, j] * expert ids[t, j] (x[t])`. An id that is no expert's adds nothing.

    An expert's gates are the first half of its rows in `gate_up`. Everything has one float type but the weights, which
    are float32, and the ids, int32. `block` is how many rows of one expert a program has.
    """
    num_tokens, k = ids_Tk.shape
    num_experts = len(gate_up_XGE)
    assert len(down_XEF) == num_experts, "each expert has both of its layers"
    assert weights_Tk.shape == ids_Tk.shape, "a weight for each pair"
    assert len(x_TE) == num_tokens, "each token has experts"
    if num_tokens == 0:
        return torch.empty_like(x_TE)
    num_pairs = num_tokens * k
    aligned = moe_align(ids_Tk, num_experts, block or block_for(num_pairs, num_experts))
    gated_PF = grouped_matmul(x_TE, gate_up_XGE, aligned, num_pairs, divide=k, gated=True)
    y_PE = grouped_matmul(gated_PF, down_XEF, aligned, num_pairs, divide=1, factors_P=weights_Tk.flatten())
    return sum_experts(y_PE.unflatten(0, (num_tokens, k)), ids_Tk, num_experts)
