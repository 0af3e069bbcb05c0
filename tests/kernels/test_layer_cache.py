"""How vectors become int8, and runs of them numbers again."""

import pytest
import torch

from actorlm.kernels.layer_cache import LayerCache, quantised


def test_numbers_are_whole_steps_of_a_127th_of_the_largest():
    numbers, scales = quantised(torch.tensor([[127.0, -3.4, 0.5, 1.5], [0.0, -2.0, 1.0, 0.01]]))
    assert scales.tolist() == pytest.approx([1.0, 2 / 127])
    assert numbers.tolist() == [[127, -3, 0, 2], [0, -127, 64, 1]]


def test_a_vector_of_zeros_and_one_too_small_to_scale():
    numbers, scales = quantised(torch.tensor([[0.0, -0.0], [1e-45, 0.0]]))
    assert scales.tolist() == [0.0, 0.0]
    assert numbers.tolist() == [[0, 0], [127, 0]]


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_stays_so(bad):
    numbers, scales = quantised(torch.tensor([1.0, bad]))
    assert not (numbers * scales).isfinite().any()


def test_the_error_is_at_most_half_a_step():
    torch.manual_seed(0)
    vectors = torch.randn(100, 64)
    numbers, scales = quantised(vectors)
    assert ((numbers * scales[:, None] - vectors).abs() <= scales[:, None] * 0.5001).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8])
def test_what_is_put_is_gathered(dtype):
    torch.manual_seed(0)
    scales = torch.zeros(2, 3, 2, 16) if dtype is torch.int8 else None
    cache = LayerCache(torch.zeros(2, 3, 2, 16, 4, dtype=dtype), scales)
    vectors, places = torch.randn(5, 4, 4), torch.randperm(192)[:20].view(5, 4)
    cache.put(places, vectors)
    runs = torch.randperm(12)
    gathered = torch.empty(12, 64)
    cache.gather(runs, gathered)
    expected = torch.zeros(192, 4)
    expected[places] = vectors
    step = vectors.abs().max() / 250
    assert (gathered.view(12, 16, 4) - expected.view(12, 16, 4)[runs]).abs().max() < step


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8])
def test_keys_by_feature_and_back(dtype):
    torch.manual_seed(0)
    scales = torch.rand(2, 3, 2, 16) if dtype is torch.int8 else None
    cache = LayerCache(torch.randint(-9, 9, (2, 3, 2, 16, 4)).to(dtype), scales)
    turned = cache.turned()
    assert turned.keys_by_feature
    assert turned.all_2bk16H[0, 1, 1].view(4, 16)[2, 5] == cache.all_2bk16H[0, 1, 1, 5, 2]
    assert torch.equal(turned.all_2bk16H[1], cache.all_2bk16H[1])
    assert torch.equal(turned.turned().all_2bk16H, cache.all_2bk16H)
    with pytest.raises(AssertionError, match="for native kernels"):
        turned.put(torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, 4, 4))


def test_int8_needs_scales():
    with pytest.raises(AssertionError, match="int8 has scales"):
        LayerCache(torch.zeros(2, 1, 1, 16, 4, dtype=torch.int8))
    with pytest.raises(AssertionError, match="a scale for each vector"):
        LayerCache(torch.zeros(2, 1, 1, 16, 4, dtype=torch.int8), torch.zeros(2, 1, 1, 8))
