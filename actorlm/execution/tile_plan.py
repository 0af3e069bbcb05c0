"""Cuts a step into what the native `kernels.paged_attention` computes: groups of tiles, each a job for a thread.

A tile is few queries of one row. Rows that generate, and whose sequences begin with the same blocks of the cache, form
groups: what they share is read once for all of them.

Legend: R rows, B tiles, G groups.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from actorlm.config import BLOCK_SIZE
from actorlm.execution.ragged import Indices
from actorlm.execution.tiles import Tiles, cut
from actorlm.kernels.native import Native
from actorlm.kernels.paged_attention import TilePlan

JOB_HEADS = 48
"""Queries times heads of a job: many use each key that is read, and their scores stay cached."""
JOBS_A_THREAD = 4
"""Groups are no larger than leaves so many to each, if there is a choice."""
MIN_SHARED = 4
"""Blocks that are worth reading together."""

Tables = NDArray[np.int32]


def plan_tiles(
    starts: Indices, counts: Indices, tables: Tables, num_heads: int, num_kv_heads: int, native: Native
) -> TilePlan:
    """The plan for rows that compute [starts, starts + counts) [R], with block tables [R, width]."""
    most = max(JOB_HEADS * num_kv_heads // num_heads, 1)
    tiles = cut(starts, counts, most)
    jobs = native.threads * JOBS_A_THREAD if native.threads > 1 else 1
    tiles, groups = _grouped(tiles, tables, min(most, max(len(tiles) * num_kv_heads // jobs, 1)))
    columns = np.stack((tiles.rows, tiles.tokens, tiles.positions, tiles.queries)).astype(np.int32)
    return TilePlan(native, torch.from_numpy(tables), torch.from_numpy(columns), torch.from_numpy(groups))


def _grouped(tiles: Tiles, tables: Tables, most: int) -> tuple[Tiles, NDArray[np.int32]]:
    """The tiles in an order of our own, and groups [3, G] of at most `most` of them; see `TilePlan`."""
    seen = tiles.keys // BLOCK_SIZE  # blocks that every query of a generating row sees whole
    sharing = np.flatnonzero((tiles.queries == 1) & (seen >= MIN_SHARED))
    if most == 1 or len(sharing) < 2:
        return tiles, _alone(len(tiles))
    last = tables[tiles.rows[sharing], MIN_SHARED - 1]
    order = np.argsort(last, kind="stable")
    if (np.diff(last[order]) != 0).all():  # so that nothing more is compared where nobody shares
        return tiles, _alone(len(tiles))
    sharing = sharing[order]
    common = _common_blocks(tables[tiles.rows[sharing]], seen[sharing])
    others = np.setdiff1d(np.arange(len(tiles)), sharing, assume_unique=True)
    together = _runs(common, most)
    together[0] += len(others)
    return tiles[np.concatenate((others, sharing))], np.concatenate((_alone(len(others)), together), axis=1)


def _common_blocks(tables: Tables, seen: Indices) -> Indices:
    """With how many same blocks each table and the one after it begin, of those that both see whole."""
    same: Indices = np.cumprod(tables[1:] == tables[:-1], axis=1, dtype=np.int64).sum(axis=1)
    common: Indices = np.minimum(same, np.minimum(seen[1:], seen[:-1]))
    return common


def _runs(common: Indices, most: int) -> NDArray[np.int32]:
    """Groups of neighbours. One does not join if that would leave less than half of what is shared."""
    groups = [[0, 1, 0]]
    for place, blocks in enumerate(common.tolist(), start=1):
        _, size, shared = groups[-1]
        if size < most and blocks >= max(MIN_SHARED, shared / 2):
            groups[-1][1:] = size + 1, min(blocks, shared) if shared else blocks
        else:
            groups.append([place, 1, 0])
    return np.array(groups, np.int32).T.copy()


def _alone(count: int) -> NDArray[np.int32]:
    groups = np.zeros((3, count), np.int32)
    groups[0], groups[1] = np.arange(count), 1
    return groups
