"""silu_mul against its formula in float64."""

import pytest
import torch

from actorlm.kernels.silu_mul import Gates, silu_mul


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_silu_mul(dtype, tolerance):
    torch.manual_seed(0)
    gates = Gates(5, 12, dtype)
    both = (torch.randn(5, 24) * 3).to(dtype)
    gates.flat_TX.copy_(both)
    gate, up = both.double()[:, :12], both.double()[:, 12:]
    torch.testing.assert_close(
        silu_mul(gates).double(), gate / (1 + (-gate).exp()) * up, atol=tolerance, rtol=tolerance
    )
    assert torch.equal(gates.flat_TX, both)
