"""Cuts a step into what `kernels.paged_attention` computes with torch: few pieces, of work in proportion to tokens.

Rows are cut into tiles of at most 128 queries, each with the keys up to its last query. Tiles whose numbers of queries
and of key blocks have the same powers of two above them form a bucket, padded to the longest tile in it: never to twice
what is needed. There are at most 8 bucket sizes of queries, and as many of keys as the longest sequence has doublings.
A bucket whose gathered keys and values would fill more than `MAX_PIECE_BYTES` is cut into pieces, which bounds memory
and keeps what one piece gathers in the cache until it is used.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from actorlm.config import BLOCK_SIZE
from actorlm.execution.ragged import Indices
from actorlm.execution.tiles import Tiles, cut
from actorlm.kernels.paged_attention import AttentionPlan, Piece

TILE_QUERIES = 128
MAX_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What a step must know of a layer's cache. `dtype` is that of what is gathered from it, to compute with."""

    num_blocks: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """Of the keys and values of one block, once they are gathered."""
        return 2 * self.num_kv_heads * BLOCK_SIZE * self.head_dim * self.dtype.itemsize


def plan_attention(starts: Indices, counts: Indices, tables: NDArray[np.int32], shape: CacheShape) -> AttentionPlan:
    """The plan for rows that compute [starts, starts + counts) [R], with block tables [R, width]."""
    parts = list(_parts(cut(starts, counts, TILE_QUERIES), shape))
    runs = [_runs(part, tables, shape) for part in parts]
    buffer_RX = torch.empty(max(map(len, runs)), BLOCK_SIZE * shape.head_dim, dtype=shape.dtype)
    pieces, orders, begin = [], [], 0
    for part, part_runs in zip(parts, runs, strict=True):
        order = part.tokens[:, None] + _steps(part)
        pieces.append(_piece(begin, part, part_runs, buffer_RX, shape))
        orders.append(order.reshape(-1))
        begin += order.size
    return _plan(np.concatenate(orders), int(counts.sum()), tuple(pieces))


def _parts(tiles: Tiles, shape: CacheShape) -> Iterator[Tiles]:
    key_blocks = -(-tiles.keys // BLOCK_SIZE)
    bucket = _doublings(tiles.queries) * 64 + _doublings(key_blocks)
    order = np.argsort(bucket, kind="stable")
    edges = np.flatnonzero(np.diff(bucket[order], prepend=-1, append=-1))
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        members = order[begin:end]
        tile_bytes = int(key_blocks[members].max()) * shape.block_bytes
        size = max(MAX_PIECE_BYTES // tile_bytes, 1)
        for first in range(0, len(members), size):
            yield tiles[members[first : first + size]]


def _doublings(numbers: Indices) -> Indices:
    """The least d with 2**d >= number, for numbers of at least 1."""
    return np.frexp(numbers - 1)[1].astype(np.int64)


def _steps(tiles: Tiles) -> Indices:
    """[B, Q]: each query's distance from its tile's first; padding repeats the tile's last query."""
    return np.minimum(np.arange(tiles.queries.max()), tiles.queries[:, None] - 1)


def _runs(tiles: Tiles, tables: NDArray[np.int32], shape: CacheShape) -> Indices:
    """Padding reads the row's own first block again: never what another request has written."""
    used = -(-tiles.keys // BLOCK_SIZE)
    columns = np.arange(used.max())
    blocks = np.where(columns < used[:, None], tables[tiles.rows, : len(columns)], tables[tiles.rows, :1])
    keys = blocks.astype(np.int64)[:, None] * shape.num_kv_heads + np.arange(shape.num_kv_heads)[:, None]
    runs: Indices = np.stack((keys, keys + shape.num_blocks * shape.num_kv_heads)).reshape(-1)
    return runs


def _piece(begin: int, tiles: Tiles, runs: Indices, buffer_RX: torch.Tensor, shape: CacheShape) -> Piece:
    num_keys, gathered_RX = int(tiles.keys.max()), buffer_RX[: len(runs)]
    kv = gathered_RX.view(2, len(tiles.rows), shape.num_kv_heads, -1, shape.head_dim)[:, :, :, :num_keys]
    return Piece(
        begin=begin,
        tiles=len(tiles.rows),
        queries=int(tiles.queries.max()),
        runs_R=torch.from_numpy(runs),
        gathered_RX=gathered_RX,
        k_BkKH=kv[0],
        v_BkKH=kv[1],
        mask_B1QK=_mask(tiles, num_keys, shape.dtype),
        positions_B1Q1=torch.from_numpy(_positions(tiles)),
    )


def _positions(tiles: Tiles) -> Indices:
    """[B, 1, Q, 1]."""
    positions: Indices = (tiles.positions[:, None] + _steps(tiles))[:, None, :, None]
    return positions


def _mask(tiles: Tiles, num_keys: int, dtype: torch.dtype) -> torch.Tensor | None:
    if (tiles.queries == 1).all() and (tiles.keys == num_keys).all():
        return None
    hidden = torch.from_numpy(np.arange(num_keys) > _positions(tiles))
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


def _plan(order: Indices, num_tokens: int, pieces: tuple[Piece, ...]) -> AttentionPlan:
    if len(order) == num_tokens and (np.diff(order) == 1).all():
        return AttentionPlan(None, None, pieces)
    source = np.empty(num_tokens, np.int64)
    source[order[::-1]] = np.arange(len(order))[::-1]
    return AttentionPlan(torch.from_numpy(order), torch.from_numpy(source), pieces)
