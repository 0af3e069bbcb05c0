"""silu(gate) * up against torch."""

import pytest
import torch

from actorlm.kernels.gpu.silu_mul import reference, silu_mul


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
@pytest.mark.parametrize("size", [40, 1500])
def test_rows(dtype, tolerance, size):
    torch.manual_seed(0)
    x = (torch.randn(3, 2 * size) * 3).to(dtype)
    expected = reference(x)
    torch.testing.assert_close(silu_mul(x), expected, atol=tolerance, rtol=tolerance)
    assert expected.abs().max() > 1


def test_large_gates():
    x = torch.tensor([[-1e4, 1e4, 2.0, 2.0]])
    assert torch.equal(silu_mul(x), torch.tensor([[-0.0, 2e4]]))


def test_what_the_launcher_refuses():
    with pytest.raises(AssertionError, match="an up for each gate"):
        silu_mul(torch.zeros(2, 3))
    with pytest.raises(AssertionError, match="rows follow each other"):
        silu_mul(torch.zeros(4, 4).T)
