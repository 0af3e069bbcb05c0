"""sum_splits against its reference, and how many parts there are."""

import pytest
import torch

from actorlm.kernels.gpu.sum_splits import reference, sum_splits
from actorlm.kernels.gpu.tile_order import splits_for


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_sums(has_bias, dtype, tolerance):
    torch.manual_seed(0)
    parts, bias = torch.randn(4, 3, 500), torch.randn(500).to(dtype) if has_bias else None
    out = sum_splits(parts, dtype, bias)
    assert out.dtype is dtype
    torch.testing.assert_close(out, reference(parts, dtype, bias), atol=tolerance, rtol=tolerance)


def test_parts_are_added_in_order():
    parts = torch.tensor([1e8, 1.0, -1e8]).reshape(3, 1, 1)
    assert sum_splits(parts, torch.float32).item() == (torch.tensor(1e8) + 1.0 - 1e8).item()


def test_two_programs_a_multiprocessor():
    assert [splits_for(tiles, 64, 132) for tiles in (1, 16, 64, 133, 1000)] == [16, 16, 4, 1, 1]
    assert [splits_for(8, steps, 132) for steps in (1, 7, 8, 31, 64)] == [1, 1, 2, 4, 16]
