"""Exchanges between ranks: sums in the order of ranks, on every rank the same bits, and an end to waiting.

Ranks are threads here, which map the same memory as processes would.
"""

import mmap
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from native_levels import on_all_levels

from actorlm.errors import PeerMissing
from actorlm.kernels import exchange
from actorlm.kernels.exchange import Exchange, memory_bytes, reference
from actorlm.kernels.native import Native


def ends(native, size, patience_s=20.0):
    """One end for each rank, with kernels of its own."""
    memory = mmap.mmap(-1, memory_bytes(native, size))
    natives = [Native(native.level, threads=1 + rank % 2) for rank in range(size)]
    return [Exchange(one, memory, size=size, rank=rank, patience_s=patience_s) for rank, one in enumerate(natives)]


def on_all(ranks, act):
    """What `act(end)` gives for each rank, all at once."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(act, ranks))


@on_all_levels
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(1, 576), (3, 17), (64, 576)])
def test_sums_are_those_of_the_reference_bit_for_bit(native, size, shape):
    torch.manual_seed(0)
    ranks = ends(native, size)
    parts = [[torch.randn(shape) * 10.0**rank for rank in range(size)] for _ in range(5)]
    begin = torch.randn(shape)

    def add_all(end):
        total = begin.clone()
        for part in parts:
            end.add_reduced(total, part[end.rank])
        end.check()
        return total

    expected = begin.clone()
    for part in parts:
        reference(expected, part)
    for total in on_all(ranks, add_all):
        assert torch.equal(total, expected)


@on_all_levels
def test_what_is_larger_than_a_slot_takes_several_rounds(native, monkeypatch):
    monkeypatch.setattr(exchange, "SLOT_BYTES", 256)
    torch.manual_seed(1)
    ranks, parts, all_ids = ends(native, 3), torch.randn(3, 7, 31), torch.arange(3 * 99).view(3, 99)

    def everything(end):
        total, ids = torch.zeros(7, 31), all_ids[end.rank].clone()
        end.add_reduced(total, parts[end.rank])
        gathered = end.gather(ids)
        end.spread(ids)
        return total, gathered, ids

    results = on_all(ranks, everything)
    for total, _, ids in results:
        assert torch.equal(total, parts[0] + parts[1] + parts[2])
        assert torch.equal(ids, all_ids[0])
    assert torch.equal(results[0][1], all_ids)
    assert [gathered for _, gathered, _ in results[1:]] == [None, None]


@on_all_levels
def test_a_rank_that_does_not_come_ends_the_wait_and_is_named(native):
    ranks = ends(native, 3, patience_s=2.0)

    def add_twice(end):
        for _ in range(1 if end.rank == 1 else 2):
            end.add_reduced(torch.zeros(4), torch.ones(4))

    on_all(ranks, add_twice)
    ranks[1].check()
    for end in (ranks[0], ranks[2]):
        with pytest.raises(PeerMissing, match=r"tensor rank 1 .* did not come to an exchange within 2 s"):
            end.check()
        end.spread(torch.zeros(1))  # at once, without a wait
        end.add_reduced(torch.zeros(4), torch.ones(4))


@on_all_levels
def test_the_wait_for_a_process_ends_with_it(native):
    memory = mmap.mmap(-1, memory_bytes(native, 2))
    child = os.fork()
    if child == 0:
        Exchange(native, memory, size=2, rank=1, patience_s=60.0)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    end = Exchange(native, memory, size=2, rank=0, patience_s=3600.0)
    end.spread(torch.zeros(1))
    with pytest.raises(PeerMissing, match="tensor rank 1 has ended"):
        end.check()


@on_all_levels
def test_launches_of_it_are_recorded_and_repeated(native):
    ranks = ends(native, 2)

    def record(end):
        total, part = torch.zeros(4), torch.full((4,), 1.0 + end.rank)
        with end._native.recording() as launches:
            end.add_reduced(total, part)
        part += 10
        for launch in launches:
            launch.function(*launch.arguments)
        return total

    for total in on_all(ranks, record):
        assert total.tolist() == [3.0 + 23.0] * 4
