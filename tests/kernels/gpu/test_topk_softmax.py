"""topk_softmax against its reference, in Triton's interpreter."""

import pytest
import torch

from actorlm.kernels.gpu.topk_softmax import reference, topk_softmax


def compared(logits, k, *, renormalise):
    weights, ids = topk_softmax(logits, k, renormalise=renormalise)
    expected_weights, expected_ids = reference(logits, k, renormalise=renormalise)
    assert torch.equal(ids, expected_ids)
    assert weights.dtype is torch.float32
    torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("experts", "k"), [(8, 2), (60, 4), (3, 3), (1, 1), (128, 8)])
def test_choices_and_weights(experts, k, dtype, renormalise):
    torch.manual_seed(experts)
    compared((torch.randn(5, experts) * 3).to(dtype), k, renormalise=renormalise)


def test_rows_of_a_wider_buffer():
    torch.manual_seed(1)
    compared(torch.randn(4, 32)[:, 5:16], 3, renormalise=True)


def test_of_equals_the_first_is_better():
    logits = torch.tensor([[1.0, 2.0, 2.0, 1.0, 2.0, 1.0], [0.0] * 6])
    _, ids = topk_softmax(logits, 4, renormalise=True)
    assert ids.tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_logits_without_a_value_still_choose_experts_that_exist(value):
    logits = torch.full((2, 5), value)
    logits[1] = torch.arange(5.0)
    weights, ids = topk_softmax(logits, 3, renormalise=True)
    assert ids.tolist() == [[0, 1, 2], [4, 3, 2]]
    torch.testing.assert_close(weights[1], torch.tensor([2.0, 1.0, 0.0]).softmax(0))


def test_no_tokens():
    weights, ids = topk_softmax(torch.empty(0, 4), 2, renormalise=True)
    assert weights.shape == ids.shape == (0, 2)


def test_more_experts_than_there_are():
    with pytest.raises(AssertionError, match="as many experts as there are"):
        topk_softmax(torch.zeros(1, 4), 5, renormalise=True)
