"""The cache's shape, size and refusals."""

import mmap

import pytest
import torch

from actorlm.checkpoint.description import ModelDescription
from actorlm.errors import InsufficientMemory
from actorlm.execution.kv_cache import allocate, check_memory, kv_cache_bytes

MODEL = ModelDescription(
    path="",
    format="bytes",
    name="m",
    architecture="",
    vocab_size=1,
    max_model_len=1,
    bos_token_id=None,
    eos_token_ids=(),
    num_layers=3,
    num_kv_heads=2,
    head_dim=8,
    num_parameters=1000,
)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_layout(dtype, size):
    caches = allocate(MODEL, 5, dtype)
    assert [tuple(cache.all_2bk16H.shape) for cache in caches] == [(2, 5, 2, 16, 8)] * 3
    assert all(cache.all_2bk16H.dtype is dtype and not cache.all_2bk16H.any() for cache in caches)
    assert kv_cache_bytes(MODEL, 5, dtype) == sum(c.all_2bk16H.nbytes for c in caches) == 3 * 2 * 5 * 2 * 16 * 8 * size


def test_layers_do_not_overlap():
    first, second, _ = allocate(MODEL, 2, torch.float32)
    first.vectors_VH.fill_(1.0)
    assert first.all_2bk16H.all()
    assert first.runs_RX.all()
    assert not second.all_2bk16H.any()


def test_what_does_not_fit_is_refused():
    need = 4000 + kv_cache_bytes(MODEL, 5, torch.float32)
    check_memory(MODEL, 5, 4, torch.float32, need)
    with pytest.raises(InsufficientMemory, match="80 tokens"):
        check_memory(MODEL, 5, 4, torch.float32, need - 1)


def test_memory_that_the_system_refuses(monkeypatch):
    def refuse(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(InsufficientMemory, match="Cannot allocate memory"):
        allocate(MODEL, 5, torch.float32)
