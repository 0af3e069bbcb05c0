"""silu_mul against its formula in float64."""

import pytest
import torch
from native_levels import on_all_levels

from actorlm.kernels.silu_mul import Gates, silu_mul


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_silu_mul(dtype, tolerance):
    torch.manual_seed(0)
    gates = Gates.make(5, 12, dtype)
    both = (torch.randn(5, 24) * 3).to(dtype)
    gates.flat_TX.copy_(both)
    gate, up = both.double()[:, :12], both.double()[:, 12:]
    torch.testing.assert_close(
        silu_mul(gates).double(), gate / (1 + (-gate).exp()) * up, atol=tolerance, rtol=tolerance
    )
    assert torch.equal(gates.flat_TX, both)


@on_all_levels
@pytest.mark.parametrize("size", [1, 16, 45])
def test_the_native_kernel(native, size):
    torch.manual_seed(1)
    gates = Gates.make(21, size, torch.float32, native)
    gates.flat_TX.copy_(torch.randn(21, 2 * size) * 20)
    gate, up = gates.flat_TX.double().chunk(2, dim=-1)
    torch.testing.assert_close(silu_mul(gates).double(), gate / (1 + (-gate).exp()) * up, atol=1e-6, rtol=1e-6)


@on_all_levels
def test_gates_without_end_and_without_a_value(native):
    gates = Gates.make(1, 6, torch.float32, native)
    gates.gate_TF.copy_(torch.tensor([[-1e30, -200.0, 0.0, 200.0, 1e30, torch.nan]]))
    gates.up_TF.fill_(1.0)
    expected = torch.tensor([[0.0, 0.0, 0.0, 200.0, 1e30, torch.nan]])
    torch.testing.assert_close(silu_mul(gates), expected, atol=1e-6, rtol=1e-6, equal_nan=True)
