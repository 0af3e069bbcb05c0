"""Sizes of the tiles that programs work in, by kernel, shape and card.

Tiles are chosen by what they take when compiled (no spills; warp-group instructions where a card has them), not
measured, unless `tuned` says on which card, for which shape and with what gain.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """How one program works."""

    rows: int
    """Queries times the heads that share keys (attention), or rows of the output."""
    columns: int
    """Keys (attention), or features, at a time."""
    warps: int
    stages: int
    """Loads under way at once."""
    tuned: str = ""
    """Card, shape and gain, if it was measured."""


ANY = ""
"""In place of a card: those that have no row of their own. Small enough for sm_80."""

TILES: dict[tuple[str, int, int, str], Tile] = {
    # kernel, size of a head, bytes of a cached number, card
    ("prefill", 64, 1, ANY): Tile(rows=64, columns=64, warps=4, stages=3),
    ("prefill", 64, 1, "sm_90"): Tile(rows=128, columns=64, warps=4, stages=3),
    ("prefill", 64, 2, ANY): Tile(rows=64, columns=64, warps=4, stages=3),
    ("prefill", 64, 2, "sm_90"): Tile(rows=128, columns=64, warps=4, stages=3),
    ("prefill", 64, 4, ANY): Tile(rows=32, columns=32, warps=4, stages=2),
    ("prefill", 128, 1, ANY): Tile(rows=64, columns=32, warps=4, stages=3),
    ("prefill", 128, 1, "sm_90"): Tile(rows=128, columns=64, warps=8, stages=3),
    ("prefill", 128, 2, ANY): Tile(rows=64, columns=32, warps=4, stages=3),
    ("prefill", 128, 2, "sm_90"): Tile(rows=128, columns=64, warps=8, stages=3),
    ("prefill", 128, 4, ANY): Tile(rows=32, columns=16, warps=4, stages=2),
    ("prefill", 256, 1, ANY): Tile(rows=64, columns=32, warps=8, stages=2),
    ("prefill", 256, 1, "sm_90"): Tile(rows=64, columns=32, warps=4, stages=2),
    ("prefill", 256, 2, ANY): Tile(rows=64, columns=32, warps=8, stages=2),
    ("prefill", 256, 2, "sm_90"): Tile(rows=64, columns=32, warps=4, stages=2),
    ("prefill", 256, 4, ANY): Tile(rows=16, columns=16, warps=4, stages=2),
    ("decode", 64, 1, ANY): Tile(rows=16, columns=64, warps=4, stages=3),
    ("decode", 64, 2, ANY): Tile(rows=16, columns=64, warps=4, stages=3),
    ("decode", 64, 4, ANY): Tile(rows=16, columns=16, warps=4, stages=3),
    ("decode", 128, 1, ANY): Tile(rows=16, columns=64, warps=4, stages=3),
    ("decode", 128, 2, ANY): Tile(rows=16, columns=64, warps=4, stages=3),
    ("decode", 128, 4, ANY): Tile(rows=16, columns=16, warps=4, stages=3),
    ("decode", 256, 1, ANY): Tile(rows=16, columns=32, warps=4, stages=3),
    ("decode", 256, 2, ANY): Tile(rows=16, columns=32, warps=4, stages=3),
    ("decode", 256, 4, ANY): Tile(rows=16, columns=16, warps=4, stages=3),
    ("latent", 512, 1, ANY): Tile(rows=16, columns=32, warps=4, stages=2),
    ("latent", 512, 1, "sm_90"): Tile(rows=64, columns=32, warps=8, stages=2),
    ("latent", 512, 2, ANY): Tile(rows=16, columns=32, warps=4, stages=2),
    ("latent", 512, 2, "sm_90"): Tile(rows=64, columns=64, warps=8, stages=2),
    ("latent", 512, 4, ANY): Tile(rows=16, columns=16, warps=8, stages=2),
}


def tile(kernel: str, size: int, itemsize: int, card: str = ANY) -> Tile:
    """The tile of a kernel for heads of `size` numbers, cached in `itemsize` bytes each.

    It is that of the next larger size in the table. A card is "sm_90", or its whole name.
    Raises LookupError if all sizes there are smaller.
    """
    sizes = [at[1] for at in TILES if (at[0], at[2], at[3]) == (kernel, itemsize, ANY) and at[1] >= size]
    if not sizes:
        raise LookupError(f"no tile for {kernel} of size {size} and {itemsize} bytes a number")
    return TILES.get((kernel, min(sizes), itemsize, card), TILES[kernel, min(sizes), itemsize, ANY])
