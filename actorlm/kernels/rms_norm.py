"""Root-mean-square normalisation of each row.

Legend: T rows, E features.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor


def reference(x_TE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x**2) + eps) * weight`; the norm is computed in float32, then rounded, then scaled by the weight."""
    if x_TE.dtype is torch.float32:
        return F.rms_norm(x_TE, weight_E.shape, weight_E, eps)
    return F.rms_norm(x_TE.float(), weight_E.shape, None, eps).to(x_TE.dtype) * weight_E


def rms_norm(x_TE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
    """Launches the implementation for the tensors' device: plain torch on all of them."""
    assert x_TE.shape[-1:] == weight_E.shape, "one weight for each feature"
    assert x_TE.dtype is weight_E.dtype, "a model has one dtype"
    return reference(x_TE, weight_E, eps)
