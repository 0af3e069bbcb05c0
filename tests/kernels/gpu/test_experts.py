"""The whole of a mixture of experts against its reference, in Triton's interpreter."""

import pytest
import torch

from actorlm.kernels.gpu.experts import experts, reference
from actorlm.kernels.gpu.topk_softmax import topk_softmax

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def layers(dtype, num_experts=4, size=32, features=48):
    gate_up = torch.randn(num_experts, 2 * features, size) * size**-0.5
    down = torch.randn(num_experts, size, features) * features**-0.5
    return gate_up.to(dtype), down.to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("tokens", "k"), [(1, 2), (10, 2), (3, 4)])
def test_the_sum_of_the_experts(tokens, k, dtype):
    torch.manual_seed(tokens)
    x, both = torch.randn(tokens, 32).to(dtype), layers(dtype)
    weights, ids = topk_softmax(torch.randn(tokens, 4), k, renormalise=True)
    out = experts(x, *both, weights, ids)
    assert out.dtype is dtype
    torch.testing.assert_close(out, reference(x, *both, weights, ids), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_a_token_has_the_same_bits_in_any_batch():
    torch.manual_seed(1)
    x, both = torch.randn(20, 32), layers(torch.float32)
    weights, ids = topk_softmax(torch.randn(20, 4), 2, renormalise=True)
    together = experts(x, *both, weights, ids, block=16)
    assert torch.equal(together, experts(x, *both, weights, ids, block=16))
    assert torch.equal(together[7:8], experts(x[7:8], *both, weights[7:8], ids[7:8], block=16))


def test_experts_of_other_ranks_add_nothing():
    torch.manual_seed(2)
    x, both = torch.randn(5, 32), layers(torch.float32)
    weights, ids = topk_softmax(torch.randn(5, 8), 3, renormalise=True)
    out = experts(x, *both, weights, ids)
    assert (ids >= 4).any()
    torch.testing.assert_close(out, reference(x, *both, weights, ids), atol=1e-5, rtol=1e-5)
    assert torch.equal(experts(x, *both, weights, ids + 8), torch.zeros(5, 32))


def test_no_tokens():
    empty = torch.empty(0, 2)
    assert experts(torch.empty(0, 32), *layers(torch.float32), empty, empty.int()).shape == (0, 32)
