"""Rotates queries and keys by their positions, and writes keys and values to the paged cache.

Rotation is of neighbours: numbers 2 i and 2 i + 1 of a head are the real and imaginary part of one complex number,
turned by the position times the i-th frequency. (Checkpoints that pair numbers i and i + H / 2 are re-ordered at load.)

Legend: T tokens, n query heads, k key-value heads, m = n + 2 k, H head size, h = H / 2.
"""

import torch
from torch import Tensor

from actorlm.kernels.backend import Backend, Gpu
from actorlm.kernels.layer_cache import CACHE_TYPES, LayerCache


class Heads:
    """A step's queries, keys and values of one layer: a buffer that all layers use in turn, and its views, made once.

    A view costs as much as a small operation: making them once saves about a tenth of a step of one token.
    """

    def __init__(
        self,
        num_tokens: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        backend: Backend = None,
    ) -> None:
        self.backend = backend
        device = backend.device if isinstance(backend, Gpu) else None
        all_TmH = torch.empty(num_tokens, num_heads + 2 * num_kv_heads, head_dim, dtype=dtype, device=device)
        self.all_TmH = all_TmH
        self.flat_TX = all_TmH.view(num_tokens, -1)
        self.q_TnH = all_TmH[:, :num_heads]
        self.k_TkH = all_TmH[:, num_heads : num_heads + num_kv_heads]
        self.kv_T2kH = all_TmH[:, num_heads:]
        self.qk_Tph2 = all_TmH[:, : num_heads + num_kv_heads].view(num_tokens, -1, head_dim // 2, 2)
        self.complex_qk_Tph = torch.view_as_complex(self.qk_Tph2) if dtype is torch.float32 else None


def reference(heads: Heads, rotation_T1h: Tensor, cache: LayerCache, places_T2k: Tensor) -> None:
    """See `rope_and_store`. Rotates in float32."""
    if heads.complex_qk_Tph is not None:
        heads.complex_qk_Tph.mul_(rotation_T1h)
    else:
        turned_Tph = torch.view_as_complex(heads.qk_Tph2.float()).mul_(rotation_T1h)
        heads.qk_Tph2.copy_(torch.view_as_real(turned_Tph))
    cache.put(places_T2k, heads.kv_T2kH)


def rope_and_store(heads: Heads, rotation_T1h: Tensor, cache: LayerCache, places_T2k: Tensor) -> None:
    """Rotates queries and keys in place, and stores keys and values.

    `rotation_T1h` holds complex64 numbers of absolute value 1. `places_T2k` says which vector of the cache each token's
    key heads go to, then its value heads; on a GPU it is [T] int32, 16 times a token's block plus its number in it.
    Launches the implementation that the buffer was made for.
    """
    if isinstance(heads.backend, Gpu):
        _on_gpu(heads, rotation_T1h, cache, places_T2k)
        return
    assert places_T2k.shape == heads.kv_T2kH.shape[:2], "a place for each key head and each value head"
    native = heads.backend
    if native is None:
        reference(heads, rotation_T1h, cache, places_T2k)
        return
    (tokens, num_heads, head_dim), num_kv_heads = heads.q_TnH.shape, cache.num_kv_heads
    assert heads.flat_TX.dtype is torch.float32, "heads are float32"
    assert cache.keys_by_feature, "native kernels have keys by feature"
    assert rotation_T1h.shape == (tokens, 1, head_dim // 2), "an angle for each pair of numbers"
    assert rotation_T1h.is_contiguous(), "rotations follow each other"
    assert places_T2k.is_contiguous(), "places follow each other"
    native.launch(
        "rope_and_store", native.pool, CACHE_TYPES[cache.all_2bk16H.dtype], cache.all_2bk16H, cache.scales_2bk16,
        heads.flat_TX, rotation_T1h, places_T2k, tokens, num_heads, num_kv_heads, head_dim,
    )  # fmt: skip


def _on_gpu(heads: Heads, rotation_T1h: Tensor, cache: LayerCache, places_T: Tensor) -> None:
    from actorlm.kernels.gpu.attention import Cache  # noqa: PLC0415 - needs Triton
    from actorlm.kernels.gpu.rope_and_store import rope_and_store as launch  # noqa: PLC0415

    assert not cache.keys_by_feature, "this cache is for native kernels"
    launch(heads.all_TmH, rotation_T1h[:, 0], Cache(cache.all_2bk16H), places_T)
