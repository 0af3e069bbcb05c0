"""sum_experts against its reference, in Triton's interpreter."""

import pytest
import torch

from actorlm.kernels.gpu.sum_experts import reference, sum_experts


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 8e-3)])
@pytest.mark.parametrize(("k", "size"), [(2, 48), (8, 1100), (1, 16)])
def test_sums(k, size, dtype, tolerance):
    torch.manual_seed(size)
    y, ids = torch.randn(3, k, size).to(dtype), torch.randint(-1, 6, (3, k)).int()
    y[ids == 5] = torch.nan
    y[ids == -1] = torch.nan
    out = sum_experts(y, ids, 5)
    assert out.dtype is dtype
    torch.testing.assert_close(out, reference(y, ids, 5), atol=tolerance, rtol=tolerance)
