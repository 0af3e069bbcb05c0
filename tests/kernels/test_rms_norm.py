"""rms_norm against transformers' layer."""

import pytest
import torch
from native_levels import on_all_levels
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from actorlm.kernels.rms_norm import rms_norm, rms_norm_heads

EPS = 1e-5


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_rms_norm(dtype, tolerance, scale):
    torch.manual_seed(0)
    x = (torch.randn(7, 48) * scale).to(dtype)
    layer = LlamaRMSNorm(48, EPS)
    layer.weight.data = torch.randn(48).to(dtype)
    before = x.clone()
    out = rms_norm(x, layer.weight.data, EPS)
    torch.testing.assert_close(out, layer(x).detach(), atol=tolerance, rtol=tolerance)
    assert torch.equal(x, before)


def test_a_row_of_zeros_stays():
    assert not rms_norm(torch.zeros(1, 8), torch.ones(8), EPS).any()


def test_a_weight_of_another_size_is_a_mistake():
    with pytest.raises(AssertionError):
        rms_norm(torch.zeros(1, 8), torch.ones(1), EPS)


@on_all_levels
@pytest.mark.parametrize("size", [1, 16, 45, 576])
def test_the_native_kernel_and_its_bits_in_any_batch(native, size):
    torch.manual_seed(1)
    x, weight = torch.randn(40, size), torch.randn(size)
    out = rms_norm(x, weight, EPS, native)
    torch.testing.assert_close(out, rms_norm(x, weight, EPS), atol=1e-6, rtol=2e-6)
    for row in range(40):
        assert torch.equal(rms_norm(x[row : row + 1], weight, EPS, native)[0], out[row])


@on_all_levels
@pytest.mark.parametrize("size", [8, 45, 128])
def test_some_heads_of_wider_rows_are_normalised_in_place(native, size):
    torch.manual_seed(2)
    rows, weight = torch.randn(20, 5, size), torch.randn(size)
    expected = rms_norm(rows.view(-1, size), weight, EPS, native).view(rows.shape)
    out = rows.clone()
    rms_norm_heads(out[:, 1:4], weight, EPS, native)
    assert torch.equal(out[:, 1:4], expected[:, 1:4])
    assert torch.equal(out[:, ::4], rows[:, ::4])
    rms_norm_heads(rows[:, 1:4], weight, EPS)
    torch.testing.assert_close(rows, out, atol=1e-6, rtol=2e-6)
