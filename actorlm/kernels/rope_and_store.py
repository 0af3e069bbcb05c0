"""Rotates queries and keys by their positions, and writes keys and values to the paged cache.

Rotation is of neighbours: numbers 2 i and 2 i + 1 of a head are the real and imaginary part of one complex number, turned
by the position times the i-th frequency. (Checkpoints that pair numbers i and i + H / 2 are re-ordered at load.)

Legend: T tokens, n query heads, k key-value heads, m = n + 2 k, H head size, h = H / 2, b blocks.
"""

import torch
from torch import Tensor


def reference(qkv_TmH: Tensor, rotation_T1h: Tensor, cache_2bk16H: Tensor, places_T2k: Tensor) -> Tensor:
    """See `rope_and_store`. Rotates in float32."""
    num_kv_heads, head_dim = cache_2bk16H.shape[2], cache_2bk16H.shape[4]
    qk_Tmh2 = qkv_TmH[:, :-num_kv_heads].unflatten(-1, (-1, 2))
    if qkv_TmH.dtype is torch.float32:
        torch.view_as_complex(qk_Tmh2).mul_(rotation_T1h)
    else:
        qk_Tmh2.copy_(torch.view_as_real(torch.view_as_complex(qk_Tmh2.float()).mul_(rotation_T1h)))
    cache_2bk16H.view(-1, head_dim).index_put_((places_T2k,), qkv_TmH[:, -2 * num_kv_heads :])
    return qkv_TmH[:, : -2 * num_kv_heads]


def rope_and_store(qkv_TmH: Tensor, rotation_T1h: Tensor, cache_2bk16H: Tensor, places_T2k: Tensor) -> Tensor:
    """The rotated queries [T, n, H], a view of `qkv_TmH`; rotated keys and plain values are in the cache afterwards.

    `qkv_TmH` holds n query heads, then k key heads, then k value heads, and is changed. `rotation_T1h` holds complex64
    numbers of absolute value 1. The cache is keys, then values; `places_T2k` says which of its vectors each token's key
    and value heads go to, counted as if it were [2 * block * kv_head * 16, head_dim]. Launches the implementation for the
    tensors' device: plain torch on all of them.
    """
    assert cache_2bk16H.is_contiguous(), "places count vectors of a contiguous cache"
    assert places_T2k.shape == (qkv_TmH.shape[0], 2 * cache_2bk16H.shape[2]), "a place for each key and value head"
    return reference(qkv_TmH, rotation_T1h, cache_2bk16H, places_T2k)
