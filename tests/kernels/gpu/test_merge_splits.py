"""Merging splits against weights written out, and how many there are."""

import pytest
import torch

from actorlm.kernels.gpu.merge_splits import Partials, merge_splits, num_splits, reference


@pytest.fixture
def partials():
    """Of two sequences and three heads, the last of them without keys."""
    torch.manual_seed(0)
    partials = Partials.empty(3, 3, 5, 24, "cpu")
    partials.means_SnPH.normal_()
    partials.totals_SnP.normal_(std=3)
    partials.totals_SnP[:, :, 3] = -torch.inf
    partials.totals_SnP[2] = -torch.inf
    partials.means_SnPH[:, :, 3] = torch.nan
    partials.means_SnPH[2] = torch.nan
    return partials


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -4.0, 60.0])], ids=["none", "sinks"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 8e-3)])
def test_splits_without_keys_take_no_part(partials, sinks, dtype, tolerance):
    out = merge_splits(partials, torch.full((3, 3, 24), 7, dtype=dtype), sinks)
    torch.testing.assert_close(out, reference(partials, sinks, dtype), atol=tolerance, rtol=tolerance)
    assert out[:2, :2].abs().max() > 0.5
    assert not out[2].any()


def test_one_split_is_its_mean():
    partials = Partials(torch.randn(1, 2, 1, 16), torch.tensor([[[3.0], [-90.0]]]))
    torch.testing.assert_close(merge_splits(partials, torch.empty(1, 2, 16)), partials.means_SnPH[:, :, 0])


@pytest.mark.parametrize(
    ("batch", "kv_heads", "splits"), [(1, 8, 32), (1, 1, 64), (8, 8, 4), (17, 8, 1), (32, 8, 1), (256, 8, 1)]
)
def test_there_are_about_two_programs_a_multiprocessor(batch, kv_heads, splits):
    assert num_splits(batch, kv_heads, 132) == splits


def test_what_the_launcher_refuses(partials):
    with pytest.raises(AssertionError, match="mean for each head"):
        merge_splits(partials, torch.empty(3, 2, 24))
    with pytest.raises(AssertionError, match="one sink"):
        merge_splits(partials, torch.empty(3, 3, 24), torch.zeros(2))
