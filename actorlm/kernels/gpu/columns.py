"""What launchers check of tensors that have one value for each row or slot."""

import torch
from torch import Tensor


def check_column(name: str, column: Tensor, dtype: torch.dtype, length: int) -> None:
    """What a kernel relies on where it loads one value for each row or slot."""
    assert column.dtype is dtype, f"{name} is {dtype}"
    assert column.shape == (length,), f"{name} has {length} values"
    assert column.is_contiguous(), f"{name} is dense"
