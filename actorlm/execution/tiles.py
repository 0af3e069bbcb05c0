"""A step's tokens, cut into pieces of one row each, which attention computes as one.

Legend: R rows.
"""

from dataclasses import dataclass

import numpy as np

from actorlm.execution.ragged import Indices, ranges


@dataclass(frozen=True, slots=True)
class Tiles:
    """Columns of equal length, one entry a tile."""

    rows: Indices
    tokens: Indices
    """Index of the first query among the step's tokens."""
    positions: Indices
    """Position of the first query in its sequence."""
    queries: Indices

    @property
    def keys(self) -> Indices:
        """Those that the last query of each tile sees."""
        return self.positions + self.queries

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Indices | slice) -> "Tiles":
        return Tiles(self.rows[chosen], self.tokens[chosen], self.positions[chosen], self.queries[chosen])


def cut(starts: Indices, counts: Indices, tile_queries: int) -> Tiles:
    """Tiles of at most `tile_queries` of rows that compute [starts, starts + counts) [R]."""
    rows, index = ranges(np.zeros_like(counts), -(-counts // tile_queries))
    offsets = index * tile_queries
    firsts = np.cumsum(counts) - counts
    return Tiles(
        rows=rows,
        tokens=firsts[rows] + offsets,
        positions=starts[rows] + offsets,
        queries=np.minimum(counts[rows] - offsets, tile_queries),
    )
