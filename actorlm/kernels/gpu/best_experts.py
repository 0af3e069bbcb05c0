"""What the routers share: a token's best experts, and where they go.

Legend: T tokens, X experts, k experts of a token, padded to a power of 2.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def choose_best(left_X, masses_X, experts_X, slots_k, TOP_K: tl.constexpr):
    """The ids of the TOP_K highest of `left`, from the highest, of equals the first; and their masses."""
    chosen_k = tl.zeros_like(slots_k)
    weights_k = tl.zeros_like(slots_k).to(tl.float32)
    for slot in tl.static_range(TOP_K):
        best = tl.argmax(left_X, axis=0)
        chosen_k = tl.where(slots_k == slot, best, chosen_k)
        weights_k = tl.where(slots_k == slot, tl.sum(tl.where(experts_X == best, masses_X, 0.0), axis=0), weights_k)
        left_X = tl.where(experts_X == best, -float("inf"), left_X)
    return chosen_k, weights_k


def empty_choice(logits_TX: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Weights [T, k], float32, and ids [T, k], int32, to be written; asserts what routers rely on."""
    assert logits_TX.is_floating_point(), "logits are floats"
    assert logits_TX.stride(1) == 1, "a token's logits follow each other"
    shape = len(logits_TX), k
    weights_Tk = torch.empty(shape, dtype=torch.float32, device=logits_TX.device)
    return weights_Tk, torch.empty(shape, dtype=torch.int32, device=logits_TX.device)
