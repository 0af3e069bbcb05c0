"""Rotates queries and keys by their positions, and writes keys and values to the paged cache.

Rotation is in halves, as in transformers: (x1, x2) becomes (x1 cos - x2 sin, x2 cos + x1 sin), where x1 and x2 are the
two halves of a head. The cache is [block, kv_head, 16, head_dim]; `places_Tk` says for each token and head which of its
vectors to write, counted as if the cache were [block * kv_head * 16, head_dim].

Legend: T tokens, n query heads, k key-value heads, H head size.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rotation:
    """The angles of T tokens: cosines [T, 1, H], both halves equal, and sines [T, 1, H / 2], in the model's dtype."""

    cos_T1H: Tensor
    sin_T1h: Tensor


def reference(
    qkv_TmH: Tensor, rotation: Rotation, keys_bk16H: Tensor, values_bk16H: Tensor, places_Tk: Tensor
) -> Tensor:
    """See `rope_and_store`."""
    num_kv_heads, head_dim = keys_bk16H.shape[1], keys_bk16H.shape[3]
    half, num_heads = head_dim // 2, qkv_TmH.shape[1] - 2 * num_kv_heads
    qk_TmH = qkv_TmH[:, :-num_kv_heads]
    rotated_TmH = qk_TmH * rotation.cos_T1H
    rotated_TmH[..., :half].addcmul_(qk_TmH[..., half:], rotation.sin_T1h, value=-1)
    rotated_TmH[..., half:].addcmul_(qk_TmH[..., :half], rotation.sin_T1h)
    keys_bk16H.view(-1, head_dim).index_put_((places_Tk,), rotated_TmH[:, num_heads:])
    values_bk16H.view(-1, head_dim).index_put_((places_Tk,), qkv_TmH[:, -num_kv_heads:])
    return rotated_TmH[:, :num_heads]


def rope_and_store(
    qkv_TmH: Tensor, rotation: Rotation, keys_bk16H: Tensor, values_bk16H: Tensor, places_Tk: Tensor
) -> Tensor:
    """The rotated queries [T, n, H]; rotated keys and plain values are in the cache afterwards.

    `qkv_TmH` holds n query heads, then k key heads, then k value heads. Launches the implementation for the tensors'
    device: plain torch on all of them.
    """
    assert keys_bk16H.is_contiguous(), "places count vectors of a contiguous cache"
    assert values_bk16H.is_contiguous(), "places count vectors of a contiguous cache"
    assert places_Tk.shape == (qkv_TmH.shape[0], keys_bk16H.shape[1]), "one place for each token and head"
    return reference(qkv_TmH, rotation, keys_bk16H, values_bk16H, places_Tk)
