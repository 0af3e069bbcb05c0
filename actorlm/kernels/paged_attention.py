"""Causal attention of a step's tokens to the paged cache, for all rows at once.

The native kernel reads the cache where it lies. For torch the plan cuts the step into pieces of equal padded shape, so
that a piece is one gather and one `scaled_dot_product_attention`. In a piece of one query a tile (decoding), the query
heads that share a key-value head stand in for queries, so that each key is read once for all of them: 1.5 to 2 times
faster than `enable_gqa` (2 cores, 3 x 3 heads of 64, 1 to 32 rows, 144 to 1,024 keys).

Legend: T tokens of the step, P queries with padding, n query heads, k key-value heads, g = n / k, H head size; in a
piece: B tiles, Q queries and K keys a tile, N blocks a tile, R = 2 B k N runs of 16 vectors.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from actorlm.kernels.layer_cache import LayerCache
from actorlm.kernels.native import Native
from actorlm.kernels.packed import TYPES


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


def reference(q_TnH: Tensor, cache: LayerCache, plan: AttentionPlan) -> Tensor:
    """See `paged_attention`."""
    q_PnH = q_TnH if plan.order_P is None else q_TnH.index_select(0, plan.order_P)
    parts = [_attend(q_PnH, cache, piece) for piece in plan.pieces]
    out_PX = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out_PX if plan.source_T is None else out_PX.index_select(0, plan.source_T)


def _attend(q_PnH: Tensor, cache: LayerCache, piece: Piece) -> Tensor:
    torch.index_select(cache.runs_RX, 0, piece.runs_R, out=piece.gathered_RX)
    size = piece.tiles * piece.queries
    q = q_PnH[piece.begin : piece.begin + size]
    if piece.queries == 1:
        q_BkgH = q.view(size, cache.num_kv_heads, -1, cache.head_dim)
        out_BkgH = F.scaled_dot_product_attention(q_BkgH, piece.k_BkKH, piece.v_BkKH, piece.mask_B1QK)
        return out_BkgH.reshape(size, -1)
    q_BnQH = q.view(piece.tiles, piece.queries, -1, cache.head_dim).transpose(1, 2)
    out_BnQH = F.scaled_dot_product_attention(q_BnQH, piece.k_BkKH, piece.v_BkKH, piece.mask_B1QK, enable_gqa=True)
    return out_BnQH.transpose(1, 2).reshape(size, -1)


def paged_attention(
    q_TnH: Tensor, cache: LayerCache, plan: AttentionPlan | TilePlan, out_TX: Tensor | None = None
) -> Tensor:
    """Gives [T, n H]: softmax(q k^T / sqrt(H)) v over the keys and values that the plan gives each token.

    Launches the implementation that the plan is for; the native one writes to `out` if there is one.
    """
    assert q_TnH.shape[1] % cache.num_kv_heads == 0, "each key-value head serves equally many query heads"
    if isinstance(plan, AttentionPlan):
        return reference(q_TnH, cache, plan)
    tokens, num_heads, head_dim = q_TnH.shape
    assert q_TnH.dtype is torch.float32, "queries are float32"
    assert q_TnH.stride()[1:] == (head_dim, 1), "heads of a token follow each other"
    if out_TX is None:
        out_TX = torch.empty(tokens, num_heads * head_dim)
    assert out_TX.shape == (tokens, num_heads * head_dim), "a result for each token"
    assert out_TX.is_contiguous(), "results follow each other"
    plan.native.launch(
        "paged_attention", plan.native.pool, TYPES[cache.all_2bk16H.dtype], cache.all_2bk16H, q_TnH, out_TX,
        plan.numbers_6, q_TnH.stride(0), num_heads, cache.num_kv_heads, head_dim, cache.all_2bk16H.shape[1],
    )  # fmt: skip
    return out_TX
