"""Rotates queries and keys by their positions, and writes keys and values to the paged cache, in one pass.

Rotation is of neighbours, as in `kernels/rope_and_store.py`: numbers 2 i and 2 i + 1 of a head are the real and
imaginary part of one complex number.

Legend: T tokens, n query heads, k key-value heads, m = n + 2 k, H head size, h = H / 2, b blocks of 16 keys.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from actorlm.kernels.gpu.attention import BLOCK_SIZE, FP8, TYPES, Cache

HEADS_A_PROGRAM = 8
FP8_LARGEST = 448.0


def reference(heads_TmH: Tensor, rotation_Th: Tensor, cache: Cache, places_T: Tensor) -> None:
    """See `rope_and_store`. In float32, one token at a time."""
    kv_heads = cache.kv_2bk16H.shape[2]
    queries_and_keys = heads_TmH.shape[1] - kv_heads
    for heads_mH, rotation_h, place in zip(heads_TmH, rotation_Th, places_T.tolist(), strict=True):
        pairs = torch.view_as_complex(heads_mH[:queries_and_keys].float().unflatten(1, (-1, 2)).contiguous())
        key_kH, value_kH = torch.view_as_real(pairs * rotation_h).flatten(1)[-kv_heads:], heads_mH[-kv_heads:].float()
        heads_mH[:queries_and_keys] = torch.view_as_real(pairs * rotation_h).flatten(1)
        if place >= 0:
            block, slot = divmod(place, BLOCK_SIZE)
            cache.kv_2bk16H[0, block, :, slot] = _converted(key_kH, cache.key_scale, cache.kv_2bk16H.dtype)
            cache.kv_2bk16H[1, block, :, slot] = _converted(value_kH, cache.value_scale, cache.kv_2bk16H.dtype)


def _converted(x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    return (x / scale).clamp(-FP8_LARGEST, FP8_LARGEST).to(dtype) if dtype == FP8 else x.to(dtype)


@triton.jit
def rope_and_store_kernel(
    heads_ptr, rotation_ptr, kv_ptr, places_ptr, key_divisor, value_divisor, values_at, HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr, H: tl.constexpr, PAIRS: tl.constexpr, M: tl.constexpr, IS_FP8: tl.constexpr,
):  # fmt: skip
    """See `rope_and_store`. A program has M heads of one token, in PAIRS pairs, which are h padded to a power of 2."""
    token = tl.program_id(0).to(tl.int64)
    heads_M1 = (tl.program_id(1) * M + tl.arange(0, M))[:, None]
    pairs_1p = tl.arange(0, PAIRS)[None, :]
    at_MD = (token * (HEADS + 2 * KV_HEADS) + heads_M1) * H + tl.arange(0, 2 * PAIRS)[None, :]
    mask_MD = (heads_M1 < HEADS + 2 * KV_HEADS) & (tl.arange(0, 2 * PAIRS) < H)[None, :]
    x_MD = tl.load(heads_ptr + at_MD, mask=mask_MD, other=0.0).to(tl.float32)

    is_turned_M1 = heads_M1 < HEADS + KV_HEADS
    turns_Mp = is_turned_M1 & (pairs_1p < H // 2)
    cos_Mp = tl.load(rotation_ptr + token * H + 2 * pairs_1p, mask=turns_Mp, other=1.0)
    sin_Mp = tl.load(rotation_ptr + token * H + 2 * pairs_1p + 1, mask=turns_Mp, other=0.0)
    real_Mp, imaginary_Mp = tl.split(tl.reshape(x_MD, (M, PAIRS, 2)))
    turned_Mp2 = tl.join(real_Mp * cos_Mp - imaginary_Mp * sin_Mp, real_Mp * sin_Mp + imaginary_Mp * cos_Mp)
    x_MD = tl.reshape(turned_Mp2, (M, 2 * PAIRS))
    tl.store(heads_ptr + at_MD, x_MD.to(heads_ptr.dtype.element_ty), mask=mask_MD & is_turned_M1)

    place = tl.load(places_ptr + token).to(tl.int64)
    if place >= 0:
        kv_heads_M1 = (heads_M1 - HEADS) % KV_HEADS
        cached_at_M1 = ((place // 16 * KV_HEADS + kv_heads_M1) * 16 + place % 16) * H
        cached_at_M1 += tl.where(is_turned_M1, 0, values_at)
        if IS_FP8:
            x_MD = x_MD / tl.where(is_turned_M1, key_divisor, value_divisor)
            x_MD = tl.minimum(tl.maximum(x_MD, -448.0), 448.0)
        cached_at_MD = cached_at_M1 + tl.arange(0, 2 * PAIRS)[None, :]
        tl.store(kv_ptr + cached_at_MD, x_MD.to(kv_ptr.dtype.element_ty), mask=mask_MD & (heads_M1 >= HEADS))


def rope_and_store(heads_TmH: Tensor, rotation_Th: Tensor, cache: Cache, places_T: Tensor) -> None:
    """Rotates queries and keys in place, in float32, and stores keys and values.

    `heads_TmH` has a token's query heads, then its key heads, then its value heads. `rotation_Th` holds complex64
    numbers of absolute value 1. A token's place (int32) is 16 times its block, plus the number in the block; below 0 it
    is padding, and is not stored. For fp8 numbers are divided by the cache's scales; what is too large becomes the
    largest.
    """
    (tokens, all_heads, size), kv_heads = heads_TmH.shape, cache.kv_2bk16H.shape[2]
    assert heads_TmH.is_contiguous(), "heads follow each other"
    assert heads_TmH.dtype in TYPES, "heads are float32, float16 or bfloat16"
    assert all_heads > 2 * kv_heads, "query heads come before key and value heads"
    assert cache.kv_2bk16H.is_contiguous(), "places are counted in a contiguous cache"
    assert cache.kv_2bk16H.shape[3:] == (BLOCK_SIZE, size), "a block has 16 keys of the heads' size"
    assert rotation_Th.shape == (tokens, size // 2), "an angle for each pair of numbers"
    assert rotation_Th.dtype is torch.complex64, "rotations are complex64"
    assert rotation_Th.is_contiguous(), "rotations follow each other"
    assert places_T.shape == (tokens,), "a place for each token"
    assert places_T.dtype is torch.int32, "places are int32"
    assert places_T.is_contiguous(), "places follow each other"
    heads = all_heads - 2 * kv_heads
    rope_and_store_kernel[tokens, triton.cdiv(all_heads, HEADS_A_PROGRAM)](
        heads_TmH, torch.view_as_real(rotation_Th), cache.kv_2bk16H, places_T, cache.key_scale, cache.value_scale,
        cache.kv_2bk16H[0].numel(), heads, kv_heads, size, triton.next_power_of_2(size) // 2, HEADS_A_PROGRAM,
        cache.kv_2bk16H.dtype == FP8, num_warps=4,
    )  # fmt: skip
