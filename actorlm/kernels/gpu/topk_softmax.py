"""The router of a mixture of experts: each token's k best experts, with softmax weights.

Of experts with equal logits the first is better. Ids are distinct and those of experts even where logits have no value,
so that rows that pad a batch do no harm.

Legend: T tokens, X experts, k experts a token.
"""

import triton
import triton.language as tl
from torch import Tensor

from actorlm.kernels.gpu.best_experts import choose_best, empty_choice


def reference(logits_TX: Tensor, k: int, *, renormalise: bool) -> tuple[Tensor, Tensor]:
    """See `topk_softmax`."""
    logits_TX = logits_TX.float()
    ids_Tk = logits_TX.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    if renormalise:
        return logits_TX.gather(1, ids_Tk).softmax(dim=-1), ids_Tk.int()
    return logits_TX.softmax(dim=-1).gather(1, ids_Tk), ids_Tk.int()


@triton.jit
def topk_softmax_kernel(
    logits_ptr,
    weights_ptr,
    ids_ptr,
    num_experts,
    logits_stride,
    TOP_K: tl.constexpr,
    RENORMALISE: tl.constexpr,
    BLOCK_X: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """One token a program."""
    LOWEST: tl.constexpr = -3.0e38
    token = tl.program_id(0)
    experts, slots = tl.arange(0, BLOCK_X), tl.arange(0, BLOCK_K)
    exists = experts < num_experts
    logits = tl.load(logits_ptr + token.to(tl.int64) * logits_stride + experts, exists, -float("inf")).to(tl.float32)
    masses = tl.exp(logits - tl.max(logits, axis=0))
    # What is no number, or is minus infinity, is still chosen before what does not exist or was chosen already.
    left = tl.where(exists, tl.where(logits > LOWEST, logits, LOWEST), -float("inf"))
    chosen, weights = choose_best(left, masses, experts, slots, TOP_K)
    weights /= tl.sum(weights, axis=0) if RENORMALISE else tl.sum(masses, axis=0)
    tl.store(ids_ptr + token * TOP_K + slots, chosen, slots < TOP_K)
    tl.store(weights_ptr + token * TOP_K + slots, weights, slots < TOP_K)


def topk_softmax(logits_TX: Tensor, k: int, *, renormalise: bool) -> tuple[Tensor, Tensor]:
    """The weights [T, k], float32, and ids [T, k], int32, of each token's best experts, from the best.

    Weights are shares of the softmax of all logits, or, if `renormalise`, of those chosen. Logits have any float type.
    """
    num_tokens, num_experts = logits_TX.shape
    assert 1 <= k <= num_experts, "a token has as many experts as there are, or fewer"
    weights_Tk, ids_Tk = empty_choice(logits_TX, k)
    if num_tokens:
        topk_softmax_kernel[(num_tokens,)](
            logits_TX,
            weights_Tk,
            ids_Tk,
            num_experts,
            logits_TX.stride(0),
            TOP_K=k,
            RENORMALISE=renormalise,
            BLOCK_X=triton.next_power_of_2(num_experts),
            BLOCK_K=triton.next_power_of_2(k),
            num_warps=1,
        )
    return weights_Tk, ids_Tk
