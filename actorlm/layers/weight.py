"""What a layer has of a checkpoint."""

from typing import NamedTuple

from actorlm.kernels.linear import Rows


class Cut(NamedTuple):
    """A rank's part of a tensor: some of its `whole` rows (`dimension` 0) or columns (1)."""

    dimension: int
    part: range
    whole: int


class Weight(NamedTuple):
    """A tensor to fill, by its layer's name for it, such as `query.weight`. Without `cut` it is the whole one."""

    name: str
    destination: Rows
    cut: Cut | None = None
