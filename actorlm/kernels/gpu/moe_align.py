"""Sorts (token, expert) pairs by expert, and pads each expert's part to whole blocks.

So a matrix product needs one expert's weights for each block of rows. All of it happens on the device, in sizes that
follow from the number of pairs alone. Pairs of one expert keep their order. A pair whose id is no expert's is left out.

Legend: P pairs, pair t * k + j being the j-th of token t, X experts, S slots, B blocks of slots.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_PAIRS_A_TIME = 1024


class Alignment(NamedTuple):
    """Slots of pairs. What lies beyond the slots in use has no value.

    `pairs_S` has the pair of each slot, or P where a slot pads its block; `experts_B` the expert of each block;
    `slots_1` the number of slots in use, a multiple of `block`. All are int32.
    """

    pairs_S: Tensor
    experts_B: Tensor
    slots_1: Tensor
    block: int


def most_blocks(num_pairs: int, num_experts: int, block: int) -> int:
    """How many blocks there can be, whichever experts are chosen."""
    return (num_pairs + min(num_pairs, num_experts) * (block - 1)) // block


def reference(ids_Tk: Tensor, num_experts: int, block: int) -> tuple[list[int], list[int]]:
    """The pairs of the slots in use, and the experts of the blocks in use. See `moe_align`."""
    ids = ids_Tk.flatten().tolist()
    pairs: list[int] = []
    experts: list[int] = []
    for expert in range(num_experts):
        own = [pair for pair, chosen in enumerate(ids) if chosen == expert]
        own += [len(ids)] * (-len(own) % block)
        pairs += own
        experts += [expert] * (len(own) // block)
    return pairs, experts


@triton.jit
def count_pairs_kernel(ids_ptr, counts_ptr, num_pairs, BLOCK_P: tl.constexpr) -> None:
    """How many pairs an expert has: one expert a program."""
    expert = tl.program_id(0)
    count = tl.zeros((), tl.int32)
    for first in range(0, num_pairs, BLOCK_P):
        pairs = first + tl.arange(0, BLOCK_P)
        ids = tl.load(ids_ptr + pairs, pairs < num_pairs, -1)
        count += tl.sum((ids == expert).to(tl.int32), axis=0)
    tl.store(counts_ptr + expert, count)


@triton.jit
def place_pairs_kernel(
    ids_ptr,
    counts_ptr,
    pairs_ptr,
    experts_ptr,
    slots_ptr,
    num_pairs,
    num_experts,
    BLOCK: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_X: tl.constexpr,
) -> None:
    """Fills an expert's slots, from where those of the experts before it end: one expert a program."""
    expert = tl.program_id(0)
    others = tl.arange(0, BLOCK_X)
    counts = tl.load(counts_ptr + others, others < num_experts, 0)
    blocks = (counts + BLOCK - 1) // BLOCK
    start = tl.sum(tl.where(others < expert, blocks, 0), axis=0)
    own = tl.sum(tl.where(others == expert, blocks, 0), axis=0)
    for block in range(own):
        tl.store(experts_ptr + start + block, expert)
    if expert == num_experts - 1:
        tl.store(slots_ptr, (start + own) * BLOCK)

    slot = start * BLOCK
    for first in range(0, num_pairs, BLOCK_P):
        pairs = first + tl.arange(0, BLOCK_P)
        mine = tl.load(ids_ptr + pairs, pairs < num_pairs, -1) == expert
        rank = tl.cumsum(mine.to(tl.int32), axis=0)
        tl.store(pairs_ptr + slot + rank - 1, pairs, mine)
        slot += tl.sum(mine.to(tl.int32), axis=0)
    padding = slot + tl.arange(0, BLOCK)
    tl.store(pairs_ptr + padding, tl.full((BLOCK,), num_pairs, tl.int32), padding < (start + own) * BLOCK)


def moe_align(ids_Tk: Tensor, num_experts: int, block: int) -> Alignment:
    """The pairs in order of their experts, each expert's part a multiple of `block` slots, which is a power of two.

    `ids` is int32 [T, k]; an id below 0, or `num_experts` and above, is nobody's.
    """
    assert ids_Tk.dtype is torch.int32, "ids are int32"
    assert ids_Tk.is_contiguous(), "pairs follow each other"
    assert triton.next_power_of_2(block) == block, "a block is a power of two"
    num_pairs, device = ids_Tk.numel(), ids_Tk.device
    assert num_pairs > 0, "there are pairs"
    num_blocks = most_blocks(num_pairs, num_experts, block)
    assert num_blocks * block < 2**31, "slots have numbers of 31 bits"
    counts_X = torch.empty(num_experts, dtype=torch.int32, device=device)
    pairs_S = torch.empty(num_blocks * block, dtype=torch.int32, device=device)
    experts_B = torch.empty(num_blocks, dtype=torch.int32, device=device)
    slots_1 = torch.empty(1, dtype=torch.int32, device=device)
    a_time = min(triton.next_power_of_2(num_pairs), MOST_PAIRS_A_TIME)
    grid = (num_experts,)
    count_pairs_kernel[grid](ids_Tk, counts_X, num_pairs, BLOCK_P=a_time)
    place_pairs_kernel[grid](
        ids_Tk,
        counts_X,
        pairs_S,
        experts_B,
        slots_1,
        num_pairs,
        num_experts,
        BLOCK=block,
        BLOCK_P=a_time,
        BLOCK_X=triton.next_power_of_2(num_experts),
    )
    return Alignment(pairs_S, experts_B, slots_1, block)
