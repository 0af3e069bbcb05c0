"""rms_norm against transformers' layer."""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from actorlm.kernels.rms_norm import rms_norm

EPS = 1e-5


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_rms_norm(dtype, tolerance, scale):
    torch.manual_seed(0)
    x = (torch.randn(7, 48) * scale).to(dtype)
    layer = LlamaRMSNorm(48, EPS)
    layer.weight.data = torch.randn(48).to(dtype)
    before = x.clone()
    out = rms_norm(x, layer.weight.data, torch.tensor(EPS))
    torch.testing.assert_close(out, layer(x).detach(), atol=tolerance, rtol=tolerance)
    assert torch.equal(x, before)


def test_a_row_of_zeros_stays():
    assert not rms_norm(torch.zeros(1, 8), torch.ones(8), torch.tensor(EPS)).any()


def test_a_weight_of_another_size_is_a_mistake():
    with pytest.raises(AssertionError):
        rms_norm(torch.zeros(1, 8), torch.ones(1), torch.tensor(EPS))
