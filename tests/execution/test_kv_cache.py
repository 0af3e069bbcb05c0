"""The cache's shape, size and refusals."""

import mmap

import pytest
import torch

from actorlm.checkpoint.description import ModelDescription
from actorlm.errors import InsufficientMemory
from actorlm.execution.kv_cache import allocate, check_memory, empty, kv_cache_bytes

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


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_an_empty_cache_is_zeros_and_can_be_used_again(kind):
    caches = allocate(MODEL, 5, kind, None)
    for part in caches:
        part.all_2bk16H.fill_(3)
        if part.scales_2bk16 is not None:
            part.scales_2bk16.fill_(3)
    empty(caches)
    assert not any(part.all_2bk16H.any() for part in caches)
    assert not any(part.scales_2bk16.any() for part in caches if part.scales_2bk16 is not None)
    caches[1].all_2bk16H.fill_(2)
    assert (caches[1].all_2bk16H == 2).all()
    assert not caches[0].all_2bk16H.any()


@pytest.mark.parametrize(("kind", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_layout(kind, dtype):
    caches = allocate(MODEL, 5, kind, None)
    assert [tuple(cache.all_2bk16H.shape) for cache in caches] == [(2, 5, 2, 16, 8)] * 3
    assert all(cache.all_2bk16H.dtype is dtype and not cache.all_2bk16H.any() for cache in caches)
    assert all(cache.scales_2bk16 is None for cache in caches)
    size = 3 * 2 * 5 * 2 * 16 * 8 * dtype.itemsize
    assert kv_cache_bytes(MODEL, 5, kind) == sum(c.all_2bk16H.nbytes for c in caches) == size


def test_int8_has_a_scale_for_each_vector():
    caches = allocate(MODEL, 5, "int8", None)
    assert [tuple(cache.scales_2bk16.shape) for cache in caches] == [(2, 5, 2, 16)] * 3
    assert all(cache.all_2bk16H.dtype is torch.int8 for cache in caches)
    assert not any(cache.scales_2bk16.any() for cache in caches)
    taken = sum(cache.all_2bk16H.nbytes + cache.scales_2bk16.nbytes for cache in caches)
    assert kv_cache_bytes(MODEL, 5, "int8") == taken == 3 * 2 * 5 * 2 * 16 * (8 + 4)


def test_layers_do_not_overlap():
    first, second, _ = allocate(MODEL, 2, "float32", None)
    first.vectors_VH.fill_(1.0)
    assert first.all_2bk16H.all()
    assert first.runs_RX.all()
    assert not second.all_2bk16H.any()


def test_what_does_not_fit_is_refused():
    need = 4000 + kv_cache_bytes(MODEL, 5, "int8")
    check_memory(MODEL, 5, 4, "int8", need)
    with pytest.raises(InsufficientMemory, match="80 tokens"):
        check_memory(MODEL, 5, 4, "int8", need - 1)


def test_memory_that_the_system_refuses(monkeypatch):
    def refuse(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(InsufficientMemory, match="Cannot allocate memory"):
        allocate(MODEL, 5, "float32", None)
