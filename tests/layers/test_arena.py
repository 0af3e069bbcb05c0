"""Weights and cache memory: zeros, apart, aligned, refused in words."""

import mmap

import pytest
import torch

from actorlm.errors import InsufficientMemory
from actorlm.kernels.pages import map_zeros
from actorlm.layers import arena as arenas
from actorlm.layers.arena import Arena


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_tensors_of_an_arena_do_not_overlap(monkeypatch, weights):
    monkeypatch.setattr(arenas, "CHUNK_BYTES", 4096)
    arena, dtype = Arena(weights), getattr(torch, weights)
    shapes = [(3, 5), (1, 1), (100, 7), (2000, 2), (9, 1)]
    tensors = [arena.matrix(*shape) for shape in shapes]
    assert [tuple(tensor.shape) for tensor in tensors] == shapes
    assert all(tensor.dtype is dtype and not tensor.any() and tensor.data_ptr() % 64 == 0 for tensor in tensors)
    for number, tensor in enumerate(tensors):
        tensor.fill_(number + 1)
    assert all((tensor == number + 1).all() for number, tensor in enumerate(tensors))


def test_memory_that_the_system_refuses(monkeypatch):
    def refuse(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(InsufficientMemory, match="5 MiB for weights .*Cannot allocate memory"):
        map_zeros(5 << 20, torch.float32, "weights")


def test_a_kernel_without_huge_pages_will_do(monkeypatch):
    class Memory(mmap.mmap):
        def madvise(self, advice):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Memory)
    assert not map_zeros(4096, torch.float32, "weights").any()
