"""Causal attention of a step's tokens to the paged cache, for all rows at once.

The native kernel reads the cache where it lies. For torch the plan cuts the step into pieces of equal padded shape, so
that a piece is one gather and one `scaled_dot_product_attention`. In a piece of one query a tile (decoding), the query
heads that share a key-value head stand in for queries, so that each key is read once for all of them: 1.5 to 2 times
faster than `enable_gqa` (2 cores, 3 x 3 heads of 64, 1 to 32 rows, 144 to 1,024 keys).

Legend: T tokens of the step, P queries with padding, n query heads, k key-value heads, g = n / k, H head size; in a
piece: B tiles, Q queries and K keys a tile, N blocks a tile, R = 2 B k N runs of 16 vectors.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from actorlm.kernels.attention_variant import PLAIN, AttentionVariant
from actorlm.kernels.backend import Gpu
from actorlm.kernels.layer_cache import CACHE_TYPES, LayerCache
from actorlm.kernels.native import Native


@dataclass(frozen=True, slots=True)
class Piece:
    """Tiles of one padded shape. A tile is some consecutive queries of one row, and all keys up to the last of them."""

    begin: int
    """Index of its first query among the P."""
    tiles: int
    queries: int
    runs_R: Tensor
    """Which runs of the cache to gather (int64): for each of keys and values, tile, head and block."""
    gathered_RX: Tensor
    """Where to: a buffer that all pieces and all layers use in turn."""
    k_BkKH: Tensor
    """The gathered keys."""
    v_BkKH: Tensor
    """The gathered values."""
    mask_B1QK: Tensor | None
    """0 where a query sees a key, else -inf, in the model's dtype; None where all see all."""
    positions_B1Q1: Tensor
    """Each query's place among the keys."""
    windowed: dict[int, Tensor] = field(default_factory=dict)
    """Masks of windows that some layer has had."""

    def mask(self, window: int | None) -> Tensor | None:
        """`mask_B1QK` for queries that see the last `window` keys, or all before them."""
        if window is None:
            return self.mask_B1QK
        if window not in self.windowed:
            keys_K = torch.arange(self.k_BkKH.shape[2])
            hidden_B1QK = (keys_K > self.positions_B1Q1) | (keys_K <= self.positions_B1Q1 - window)
            mask_B1QK = torch.zeros(hidden_B1QK.shape, dtype=self.k_BkKH.dtype)
            self.windowed[window] = mask_B1QK.masked_fill_(hidden_B1QK, float("-inf"))
        return self.windowed[window]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Who attends to what, in one step, for torch; the same for all layers."""

    order_P: Tensor | None
    """Which token is the query at each place, tile by tile, padded; None if that is 0, 1, ..., T - 1."""
    source_T: Tensor | None
    """At which place each token's query is; None if that is 0, 1, ..., T - 1."""
    pieces: tuple[Piece, ...]


class TilePlan:
    """The same for the native kernel.

    `tables_RX` (int32) are the blocks of each row's sequence; `tiles_4B` (int32) the row of each tile, its first token,
    the position of that in its sequence, the number of tokens; `groups_3G` (int32) the first tile of each group, the
    number of tiles, and with how many same blocks all their rows begin that are to be read once, where all their
    queries see all keys. No blocks in a group of one tile.
    """

    def __init__(self, native: Native, tables_RX: Tensor, tiles_4B: Tensor, groups_3G: Tensor) -> None:
        self.native = native
        self.tables_RX = tables_RX
        self.tiles_4B = tiles_4B
        self.groups_3G = groups_3G
        parts = (tables_RX, tiles_4B, groups_3G)
        addresses, sizes = [part.data_ptr() for part in parts], [part.shape[1] for part in parts]
        self.numbers_6 = torch.tensor(addresses + sizes)
        """What C++ sees of it: addresses, then width of the tables, numbers of tiles and groups."""


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """The same for a GPU. All are int32 and lie there; see `gpu.attention.Sequences`.

    Where each sequence has one token (`is_decode`), its keys are divided among programs.
    """

    gpu: Gpu
    tables_SW: Tensor
    lengths_S: Tensor
    starts_S1: Tensor
    is_decode: bool


Plan = AttentionPlan | TilePlan | GpuPlan


def reference(q_TnH: Tensor, cache: LayerCache, plan: AttentionPlan, variant: AttentionVariant) -> Tensor:
    """See `paged_attention`."""
    q_PnH = q_TnH if plan.order_P is None else q_TnH.index_select(0, plan.order_P)
    parts = [_attend(q_PnH, cache, piece, variant) for piece in plan.pieces]
    out_PX = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out_PX if plan.source_T is None else out_PX.index_select(0, plan.source_T)


def _attend(q_PnH: Tensor, cache: LayerCache, piece: Piece, variant: AttentionVariant) -> Tensor:
    cache.gather(piece.runs_R, piece.gathered_RX)
    size, scale = piece.tiles * piece.queries, variant.scale_of(cache.head_dim)
    q = q_PnH[piece.begin : piece.begin + size]
    k_BkKH, v_BkKH, mask_B1QK = piece.k_BkKH, piece.v_BkKH, piece.mask(variant.window)
    if variant.soft_cap is not None or variant.sinks_n is not None:
        q_BnQH = q.view(piece.tiles, piece.queries, -1, cache.head_dim).transpose(1, 2)
        out_BnQH = _softmax_by_hand(q_BnQH, k_BkKH, v_BkKH, mask_B1QK, variant)
    elif piece.queries == 1:
        q_BkgH = q.view(size, cache.num_kv_heads, -1, cache.head_dim)
        out_BkgH = F.scaled_dot_product_attention(q_BkgH, k_BkKH, v_BkKH, mask_B1QK, scale=scale)
        return out_BkgH.reshape(size, -1)
    else:
        q_BnQH = q.view(piece.tiles, piece.queries, -1, cache.head_dim).transpose(1, 2)
        out_BnQH = F.scaled_dot_product_attention(q_BnQH, k_BkKH, v_BkKH, mask_B1QK, scale=scale, enable_gqa=True)
    return out_BnQH.transpose(1, 2).reshape(size, -1)


def _softmax_by_hand(
    q_BnQH: Tensor, k_BkKH: Tensor, v_BkKH: Tensor, mask_B1QK: Tensor | None, variant: AttentionVariant
) -> Tensor:
    """[B, n, Q, H], with a soft cap and sinks, in float32."""
    tiles, num_heads, queries, head_dim = q_BnQH.shape
    num_kv_heads, num_keys = k_BkKH.shape[1:3]
    q_BkXH = q_BnQH.reshape(tiles, num_kv_heads, -1, head_dim).float()
    scores_BkXK = q_BkXH @ k_BkKH.float().transpose(2, 3) * variant.scale_of(head_dim)
    if variant.soft_cap is not None:
        scores_BkXK = variant.soft_cap * torch.tanh(scores_BkXK / variant.soft_cap)
    scores_BnQK = scores_BkXK.view(tiles, num_heads, queries, num_keys)
    if mask_B1QK is not None:
        scores_BnQK = scores_BnQK + mask_B1QK
    if variant.sinks_n is not None:
        sinks_BnQ1 = variant.sinks_n.float().view(1, -1, 1, 1).expand(tiles, -1, queries, 1)
        scores_BnQK = torch.cat((scores_BnQK, sinks_BnQ1), dim=-1)
    weights_BnQK = torch.softmax(scores_BnQK, -1)[..., :num_keys]
    out_BkXH = weights_BnQK.reshape(tiles, num_kv_heads, -1, num_keys) @ v_BkKH.float()
    return out_BkXH.view(q_BnQH.shape).to(q_BnQH.dtype)


def paged_attention(
    q_TnH: Tensor,
    cache: LayerCache,
    plan: Plan,
    out_TX: Tensor | None = None,
    variant: AttentionVariant = PLAIN,
) -> Tensor:
    """Gives [T, n H]: softmax(q k^T / sqrt(H)) v over the keys and values that the plan gives each token.

    `variant` says what is different from that. Launches the implementation that the plan is for; the native one writes
    to `out` if there is one.
    """
    assert q_TnH.shape[1] % cache.num_kv_heads == 0, "each key-value head serves equally many query heads"
    if isinstance(plan, GpuPlan):
        return _on_gpu(q_TnH, cache, plan, variant)
    if isinstance(plan, AttentionPlan):
        return reference(q_TnH, cache, plan, variant)
    tokens, num_heads, head_dim = q_TnH.shape
    assert q_TnH.dtype is torch.float32, "queries are float32"
    assert cache.keys_by_feature, "native kernels have keys by feature"
    assert q_TnH.stride()[1:] == (head_dim, 1), "heads of a token follow each other"
    if out_TX is None:
        out_TX = torch.empty(tokens, num_heads * head_dim)
    assert out_TX.shape == (tokens, num_heads * head_dim), "a result for each token"
    assert out_TX.is_contiguous(), "results follow each other"
    sinks_n = variant.sinks_n
    if sinks_n is not None:
        assert sinks_n.shape == (num_heads,), "a sink for each query head"
        assert sinks_n.dtype is torch.float32, "sinks are float32"
        assert sinks_n.is_contiguous(), "sinks follow each other"
    plan.native.launch(
        "paged_attention", plan.native.pool, CACHE_TYPES[cache.all_2bk16H.dtype], cache.all_2bk16H, cache.scales_2bk16,
        q_TnH, out_TX, plan.numbers_6, sinks_n, q_TnH.stride(0), num_heads, cache.num_kv_heads, head_dim,
        cache.all_2bk16H.shape[1], variant.window or 0, variant.scale_of(head_dim), variant.soft_cap or 0.0,
    )  # fmt: skip
    return out_TX


def _on_gpu(q_TnH: Tensor, cache: LayerCache, plan: GpuPlan, variant: AttentionVariant) -> Tensor:
    from actorlm.kernels.gpu import attention, merge_splits, paged_attention, split_attention  # noqa: PLC0415 - Triton
    from actorlm.kernels.gpu.tiles import tile  # noqa: PLC0415

    assert not cache.keys_by_feature, "this cache is for native kernels"
    tokens, heads, size = q_TnH.shape
    numbers = attention.Cache(cache.all_2bk16H)
    softmax = attention.Softmax(variant.scale_of(size), variant.soft_cap, variant.window, variant.sinks_n)
    which = "decode" if plan.is_decode else "prefill"
    chosen = tile(which, size, cache.all_2bk16H.itemsize, plan.gpu.card)
    if plan.is_decode:
        splits = merge_splits.num_splits(tokens, cache.num_kv_heads, plan.gpu.multiprocessors)
        partials = merge_splits.Partials.empty(tokens, heads, splits, size, plan.gpu.device)
        out_TnH = split_attention.split_attention(
            q_TnH, numbers, plan.tables_SW, plan.lengths_S, softmax, chosen, partials
        )
    else:
        sequences = attention.Sequences(plan.tables_SW, plan.lengths_S, plan.starts_S1)
        out_TnH = paged_attention.paged_attention(q_TnH, numbers, sequences, softmax, chosen)
    return out_TnH.view(tokens, heads * size)
