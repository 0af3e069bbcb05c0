"""Root-mean-square normalisation of each row, or of each head of each row.

Legend: T rows, E features, n heads, H head size.
"""

import torch
from torch import Tensor

from actorlm.kernels.backend import Backend, Gpu


def reference(x_TE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
    """See `rms_norm`. Five operations, where `torch.nn.functional.rms_norm` does ten on a CPU."""
    if x_TE.dtype is torch.float32:
        return _normalised(x_TE, eps).mul_(weight_E)
    return _normalised(x_TE.float(), eps).to(x_TE.dtype).mul_(weight_E)


def _normalised(x_TE: Tensor, eps: float) -> Tensor:
    length_T1 = torch.linalg.vector_norm(x_TE, dim=-1, keepdim=True)
    mean_square_T1 = torch.addcmul(x_TE.new_tensor(eps), length_T1, length_T1, value=1.0 / x_TE.shape[-1])
    return x_TE * mean_square_T1.rsqrt_()


def rms_norm(
    x_TE: Tensor, weight_E: Tensor, eps: float, backend: Backend = None, out_TE: Tensor | None = None
) -> Tensor:
    """`x / sqrt(mean(x**2) + eps) * weight`; computed in float32, and rounded before the weight is applied.

    Launches the backend's kernel; the native one, for which all is float32, writes to `out` if there is one.
    """
    assert x_TE.shape[-1:] == weight_E.shape, "one weight for each feature"
    assert x_TE.dtype is weight_E.dtype, "a model has one dtype"
    if backend is None:
        return reference(x_TE, weight_E, eps)
    if isinstance(backend, Gpu):
        return _on_gpu(x_TE, weight_E, eps)
    native = backend
    assert x_TE.dtype is torch.float32, "rows are float32"
    assert x_TE.is_contiguous(), "rows follow each other"
    if out_TE is None:
        out_TE = torch.empty_like(x_TE)
    assert out_TE.shape == x_TE.shape, "a result for each number"
    size = len(weight_E)
    native.launch("rms_norm", native.pool, x_TE, weight_E, eps, out_TE, len(x_TE), 1, size, size)
    return out_TE


def rms_norm_heads(x_TnH: Tensor, weight_H: Tensor, eps: float, backend: Backend = None) -> None:
    """The same for each head, in place; rows may lie apart, as those of a wider buffer do."""
    assert x_TnH.shape[-1:] == weight_H.shape, "one weight for each feature of a head"
    assert x_TnH.dtype is weight_H.dtype, "a model has one dtype"
    if backend is None:
        x_TnH.copy_(reference(x_TnH, weight_H, eps))
        return
    if isinstance(backend, Gpu):
        x_TnH.copy_(_on_gpu(x_TnH.reshape(-1, len(weight_H)), weight_H, eps).view(x_TnH.shape))
        return
    native = backend
    assert x_TnH.dtype is torch.float32, "heads are float32"
    assert x_TnH[0].is_contiguous(), "heads of a row follow each other"
    native.launch("rms_norm", native.pool, x_TnH, weight_H, eps, x_TnH, *x_TnH.shape, x_TnH.stride(0))


def _on_gpu(x_TE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
    from actorlm.kernels.gpu.add_rms_norm import rms_norm as launch  # noqa: PLC0415 - needs Triton

    return launch(x_TE, weight_E, eps)
