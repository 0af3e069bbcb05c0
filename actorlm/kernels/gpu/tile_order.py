"""The order in which programs take the tiles of a matrix product, and how many share one tile's sum.

Programs that run at the same time should read the same rows and the same weights, so that the cache has them.
"""

import triton
import triton.language as tl


@triton.jit
def tile_order(program, tiles_m, tiles_n, GROUP: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The place of a program's tile: GROUP rows of tiles are gone through column by column."""
    group = program // (GROUP * tiles_n)
    first = group * GROUP
    rows = min(tiles_m - first, GROUP)
    within = program % (GROUP * tiles_n)
    return first + within % rows, within // rows


def splits_for(tiles: int, steps: int, multiprocessors: int) -> int:
    """Into how many parts to split a sum of `steps` steps so that two programs run on each multiprocessor.

    A power of two. Each part has four steps or more.
    """
    splits = 1
    while 2 * splits * tiles <= 2 * multiprocessors and 8 * splits <= steps:
        splits *= 2
    return splits
