"""The router of DeepSeek V3: the k best experts of each token's best groups, with sigmoid weights.

A group is as good as its two best experts, by score plus bias; the bias chooses but does not weigh. Of equals the first
is better. Ids are distinct and those of experts even where logits have no value.

Legend: T tokens, X experts, k experts a token, G groups.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from actorlm.kernels.gpu.best_experts import choose_best, empty_choice


def reference(
    logits_TX: Tensor, bias_X: Tensor, k: int, *, num_groups: int, groups_a_token: int, scale: float
) -> tuple[Tensor, Tensor]:
    """See `topk_sigmoid`."""
    scores_TX = logits_TX.float().sigmoid()
    choice_TGx = (scores_TX + bias_X).unflatten(1, (num_groups, -1))
    order_TG = choice_TGx.topk(2, dim=-1).values.sum(-1).sort(dim=-1, descending=True, stable=True).indices
    closed_TG = torch.ones_like(order_TG, dtype=torch.bool).scatter_(1, order_TG[:, :groups_a_token], value=False)
    open_TX = choice_TGx.masked_fill(closed_TG[:, :, None], -torch.inf).flatten(1)
    ids_Tk = open_TX.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    weights_Tk = scores_TX.gather(1, ids_Tk)
    return weights_Tk / (weights_Tk.sum(-1, keepdim=True) + 1e-20) * scale, ids_Tk.int()


@triton.jit
def topk_sigmoid_kernel(
    logits_ptr,
    bias_ptr,
    weights_ptr,
    ids_ptr,
    logits_stride,
    scale,
    TOP_K: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """One token a program."""
    LOWEST: tl.constexpr = -3.0e38
    SIZE: tl.constexpr = NUM_EXPERTS // NUM_GROUPS
    token = tl.program_id(0)
    experts, slots = tl.arange(0, NUM_EXPERTS), tl.arange(0, BLOCK_K)
    logits = tl.load(logits_ptr + token.to(tl.int64) * logits_stride + experts).to(tl.float32)
    scores = 1.0 / (1.0 + tl.exp(-logits))
    choice = scores + tl.load(bias_ptr + experts)
    choice = tl.where(choice > LOWEST, choice, LOWEST)

    grouped = tl.reshape(choice, (NUM_GROUPS, SIZE))
    members = tl.arange(0, SIZE)[None, :]
    second = tl.where(members == tl.argmax(grouped, axis=1)[:, None], -float("inf"), grouped)
    goodness = tl.maximum(tl.max(grouped, axis=1) + tl.max(second, axis=1), LOWEST)
    groups = tl.arange(0, NUM_GROUPS)
    opened = tl.zeros((NUM_GROUPS,), tl.int32)
    for _ in tl.static_range(TOP_GROUPS):
        best = tl.argmax(goodness, axis=0)
        opened = tl.where(groups == best, 1, opened)
        goodness = tl.where(groups == best, -float("inf"), goodness)

    left = tl.reshape(tl.where(opened[:, None] == 1, grouped, -float("inf")), (NUM_EXPERTS,))
    chosen, weights = choose_best(left, scores, experts, slots, TOP_K)
    weights *= scale / (tl.sum(weights, axis=0) + 1e-20)
    tl.store(ids_ptr + token * TOP_K + slots, chosen, slots < TOP_K)
    tl.store(weights_ptr + token * TOP_K + slots, weights, slots < TOP_K)


def topk_sigmoid(
    logits_TX: Tensor, bias_X: Tensor, k: int, *, num_groups: int, groups_a_token: int, scale: float
) -> tuple[Tensor, Tensor]:
    """The weights [T, k], float32, and ids [T, k], int32, of each token's best experts, from the best.

    Weights are the sigmoids of those chosen, divided by their sum, times `scale`. Experts of a group follow each other.
    Logits have any float type, the bias is float32; the numbers of experts and groups are powers of two.
    """
    num_tokens, num_experts = logits_TX.shape
    assert bias_X.dtype is torch.float32, "the bias is float32"
    assert bias_X.is_contiguous(), "biases follow each other"
    assert bias_X.shape == (num_experts,), "a bias for each expert"
    assert triton.next_power_of_2(num_experts) == num_experts, "the number of experts is a power of two"
    assert triton.next_power_of_2(num_groups) == num_groups, "the number of groups is a power of two"
    assert 2 * num_groups <= num_experts, "a group has two experts or more"
    assert 1 <= groups_a_token <= num_groups, "a token has as many groups as there are, or fewer"
    assert 1 <= k <= groups_a_token * (num_experts // num_groups), "a token's groups have the experts that it needs"
    weights_Tk, ids_Tk = empty_choice(logits_TX, k)
    if num_tokens:
        topk_sigmoid_kernel[(num_tokens,)](
            logits_TX,
            bias_X,
            weights_Tk,
            ids_Tk,
            logits_TX.stride(0),
            scale,
            TOP_K=k,
            TOP_GROUPS=groups_a_token,
            NUM_EXPERTS=num_experts,
            NUM_GROUPS=num_groups,
            BLOCK_K=triton.next_power_of_2(k),
            num_warps=1,
        )
    return weights_Tk, ids_Tk
