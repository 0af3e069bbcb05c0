"""topk_sigmoid against its reference, in Triton's interpreter."""

import pytest
import torch

from actorlm.kernels.gpu.topk_sigmoid import reference, topk_sigmoid


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("experts", "k", "groups", "of_them"), [(32, 4, 8, 3), (16, 3, 1, 1), (256, 8, 8, 4), (8, 8, 4, 4)]
)
def test_choices_and_weights(experts, k, groups, of_them, dtype):
    torch.manual_seed(experts)
    logits, bias = torch.randn(4, experts).to(dtype), torch.randn(experts) * 0.2
    settings = {"num_groups": groups, "groups_a_token": of_them, "scale": 2.5}
    weights, ids = topk_sigmoid(logits, bias, k, **settings)
    expected_weights, expected_ids = reference(logits, bias, k, **settings)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=1e-5)


def test_groups_and_the_bias_decide():
    """Worked by hand: by bias alone the second group is best, so the best expert of all is not chosen."""
    logits = torch.tensor([[9.0, -9.0, 0.0, 0.0, 1.0, 1.0, -9.0, -9.0]])
    bias = torch.tensor([0.0, -5.0, 1.0, 1.0, 0.5, 0.0, 0.0, 0.0])
    weights, ids = topk_sigmoid(logits, bias, 3, num_groups=4, groups_a_token=2, scale=1.0)
    assert ids.tolist() == [[2, 3, 4]]
    scores = torch.tensor([0.0, 0.0, 1.0]).sigmoid()
    torch.testing.assert_close(weights[0], scores / scores.sum())


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_logits_without_a_value_still_choose_distinct_experts(value):
    _, ids = topk_sigmoid(torch.full((1, 16), value), torch.zeros(16), 6, num_groups=4, groups_a_token=2, scale=1.0)
    assert ids.tolist() == [[0, 1, 2, 3, 4, 5]]


def test_groups_too_small_for_the_experts():
    with pytest.raises(AssertionError, match="the experts that it needs"):
        topk_sigmoid(torch.zeros(1, 8), torch.zeros(8), 3, num_groups=4, groups_a_token=1, scale=1.0)
