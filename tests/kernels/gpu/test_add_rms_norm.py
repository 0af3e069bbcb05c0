"""Norms with and without an addition before them against torch."""

import pytest
import torch

from actorlm.kernels.gpu.add_rms_norm import add_rms_norm, reference, rms_norm, warps

TYPES = [(torch.float32, 2e-6), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)]


def given(dtype, rows=3, size=24):
    torch.manual_seed(0)
    x, residual, weight = torch.randn(rows, size), torch.randn(rows, size) * 2, torch.rand(size) + 0.5
    return x.to(dtype), residual.to(dtype), weight.to(dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES)
def test_norm(dtype, tolerance):
    x, _, weight = given(dtype)
    torch.testing.assert_close(
        rms_norm(x, weight, 1e-5), reference(x, None, weight, 1e-5), atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES)
def test_addition_and_norm(dtype, tolerance):
    x, residual, weight = given(dtype)
    before, expected_residual = x.clone(), residual.clone()
    expected = reference(x, expected_residual, weight, 1e-5)
    torch.testing.assert_close(add_rms_norm(x, residual, weight, 1e-5), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(residual, expected_residual, atol=tolerance / 2, rtol=tolerance / 2)
    assert torch.equal(x, before)


def test_eps_counts():
    x, _, weight = given(torch.float32)
    torch.testing.assert_close(rms_norm(x * 0.1, weight, 0.5), reference(x * 0.1, None, weight, 0.5))


def test_rows_that_lie_apart():
    x, _, weight = given(torch.float32, size=48)
    part = x[:, 24:]
    torch.testing.assert_close(rms_norm(part, weight[24:], 1e-5), reference(part, None, weight[24:], 1e-5))


def test_warps():
    assert [warps(size) for size in (64, 576, 4096, 16384)] == [1, 2, 8, 16]


def test_what_the_launcher_refuses():
    x, residual, weight = given(torch.float32)
    with pytest.raises(AssertionError, match="one weight"):
        rms_norm(x, weight[1:], 1e-5)
    with pytest.raises(AssertionError, match="residual for each number"):
        add_rms_norm(x, residual[1:], weight, 1e-5)
