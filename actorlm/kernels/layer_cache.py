"""One layer's part of the paged KV cache, as the kernels see it; how vectors become int8.

Legend: b blocks, k key-value heads, H head size; V = 2 b k 16 vectors, R = 2 b k runs of 16 vectors.
"""

import torch
from torch import Tensor

CACHE_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int8: 3}
"""What C++ calls the types of caches."""


def quantised(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """int8 numbers [..., H] and float32 scales [...], whose products are near the vectors [..., H].

    A scale is the largest absolute value / 127, a number the nearest whole one from -127 to 127, ties to even. What is
    not finite makes its scale not finite, too.
    """
    wide = vectors.float()
    scales = wide.abs().amax(-1) / 127
    numbers = (wide / scales.unsqueeze(-1)).clamp_(-127, 127).round_().nan_to_num_(0.0)
    return numbers.to(torch.int8), scales


class LayerCache:
    """`[2, block, kv_head, 16, head_dim]`, all keys, then all values; and two flat views, made once.

    One of int8 has a scale for each vector, `[2, block, kv_head, 16]` in float32. With `keys_by_feature`, as native
    kernels have it, the numbers of a block's keys lie as `[head_dim, 16]`.
    """

    def __init__(
        self, cache_2bk16H: Tensor, scales_2bk16: Tensor | None = None, *, keys_by_feature: bool = False
    ) -> None:
        assert cache_2bk16H.is_contiguous(), "places and runs are counted in a contiguous cache"
        assert (cache_2bk16H.dtype is torch.int8) == (scales_2bk16 is not None), "int8 has scales, others have none"
        self.num_kv_heads, block_size, self.head_dim = cache_2bk16H.shape[2:]
        self.all_2bk16H = cache_2bk16H
        self.keys_by_feature = keys_by_feature
        self.vectors_VH = cache_2bk16H.view(-1, self.head_dim)
        self.runs_RX = cache_2bk16H.view(-1, block_size * self.head_dim)
        self.scales_2bk16 = scales_2bk16
        if scales_2bk16 is not None:
            assert scales_2bk16.dtype is torch.float32, "scales are float32"
            assert scales_2bk16.is_contiguous(), "scales follow each other"
            assert scales_2bk16.shape == cache_2bk16H.shape[:-1], "a scale for each vector"

    def turned(self) -> "LayerCache":
        """A copy with the keys of each block in the other order."""
        blocks = self.all_2bk16H.clone()
        shape = blocks.shape[1:3]
        sizes = (self.head_dim, -1) if self.keys_by_feature else (-1, self.head_dim)
        keys = self.all_2bk16H[0].view(*shape, *sizes).transpose(-1, -2)
        blocks[0].copy_(keys.reshape(blocks[0].shape))
        scales = None if self.scales_2bk16 is None else self.scales_2bk16.clone()
        return LayerCache(blocks, scales, keys_by_feature=not self.keys_by_feature)

    def put(self, places_T2k: Tensor, kv_T2kH: Tensor) -> None:
        """Stores vectors, with torch."""
        assert not self.keys_by_feature, "this cache is for native kernels"
        if self.scales_2bk16 is None:
            self.vectors_VH.index_put_((places_T2k,), kv_T2kH.to(self.vectors_VH.dtype))
            return
        numbers_T2kH, scales_T2k = quantised(kv_T2kH)
        self.vectors_VH.index_put_((places_T2k,), numbers_T2kH)
        self.scales_2bk16.view(-1).index_put_((places_T2k,), scales_T2k)

    def gather(self, runs_R: Tensor, to_RX: Tensor) -> None:
        """Copies runs of 16 vectors, with torch, to a buffer of the type to compute with."""
        assert not self.keys_by_feature, "this cache is for native kernels"
        if to_RX.dtype is self.runs_RX.dtype:
            torch.index_select(self.runs_RX, 0, runs_R, out=to_RX)
            return
        to_RX.copy_(self.runs_RX.index_select(0, runs_R))
        if self.scales_2bk16 is not None:
            scales_R16 = self.scales_2bk16.view(len(self.runs_RX), -1).index_select(0, runs_R)
            to_RX.view(*scales_R16.shape, -1).mul_(scales_R16.unsqueeze(-1))
