"""One layer's part of the paged KV cache, as the kernels see it.

Legend: b blocks, k key-value heads, H head size; V = 2 b k 16 vectors, R = 2 b k runs of 16 vectors.
"""

from torch import Tensor


class LayerCache:
    """`[2, block, kv_head, 16, head_dim]`, all keys, then all values; and two flat views, made once."""

    def __init__(self, cache_2bk16H: Tensor) -> None:
        assert cache_2bk16H.is_contiguous(), "places and runs are counted in a contiguous cache"
        self.num_kv_heads, block_size, self.head_dim = cache_2bk16H.shape[2:]
        self.all_2bk16H = cache_2bk16H
        self.vectors_VH = cache_2bk16H.view(-1, self.head_dim)
        self.runs_RX = cache_2bk16H.view(-1, block_size * self.head_dim)
