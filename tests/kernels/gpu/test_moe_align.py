"""moe_align against its reference, in Triton's interpreter."""

import pytest
import torch

from actorlm.kernels.gpu import moe_align as module
from actorlm.kernels.gpu.moe_align import moe_align, most_blocks, reference


def aligned(ids, num_experts, block):
    """The pairs of the slots in use and the experts of the blocks in use, compared with the reference's."""
    done = moe_align(ids, num_experts, block)
    slots = done.slots_1.item()
    pairs, experts = done.pairs_S[:slots].tolist(), done.experts_B[: slots // block].tolist()
    assert (pairs, experts) == reference(ids, num_experts, block)
    assert len(done.experts_B) == most_blocks(ids.numel(), num_experts, block)
    assert len(done.pairs_S) == len(done.experts_B) * block >= slots
    return pairs, experts


@pytest.mark.parametrize(("tokens", "k", "experts"), [(7, 2, 5), (1, 4, 16), (40, 2, 4), (3, 1, 1)])
def test_random_choices(tokens, k, experts):
    torch.manual_seed(tokens)
    ids = torch.stack([torch.randperm(experts)[:k] for _ in range(tokens)]).int()
    aligned(ids, experts, 16)


def test_by_hand():
    """Experts 0 and 3 have no tokens, and one pair is nobody's."""
    ids = torch.tensor([[2, 1], [2, -1], [1, 4], [2, 2], [2, 1]], dtype=torch.int32)
    pairs, experts = aligned(ids, 5, 4)
    assert pairs == [1, 4, 9, 10, 0, 2, 6, 7, 8, 10, 10, 10, 5, 10, 10, 10]
    assert experts == [1, 2, 2, 4]


def test_one_expert_has_all_tokens():
    pairs, experts = aligned(torch.full((33, 1), 3, dtype=torch.int32), 6, 16)
    assert pairs == [*range(33), *[33] * 15]
    assert experts == [3, 3, 3]


def test_nobody_has_a_token():
    assert aligned(torch.full((3, 2), 7, dtype=torch.int32), 7, 16) == ([], [])


def test_as_many_blocks_as_there_can_be():
    _, experts = aligned(torch.arange(4, dtype=torch.int32).repeat(5, 1), 4, 4)
    assert len(experts) == most_blocks(20, 4, 4) == 8


def test_pairs_are_taken_in_several_turns(monkeypatch):
    monkeypatch.setattr(module, "MOST_PAIRS_A_TIME", 8)
    torch.manual_seed(2)
    aligned(torch.randint(0, 3, (11, 2)).int(), 3, 4)
