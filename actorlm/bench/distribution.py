"""What many measurements of one thing come to."""

from collections.abc import Sequence

import msgspec


class Distribution(msgspec.Struct, frozen=True):
    """Mean and percentiles, in the unit of the measurements."""

    count: int
    mean: float
    median: float
    p90: float
    p99: float
    max: float


def distribution(values: Sequence[float]) -> Distribution | None:
    """None if nothing was measured."""
    if not values:
        return None
    ordered = sorted(values)
    return Distribution(
        count=len(ordered),
        mean=sum(ordered) / len(ordered),
        median=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p99=percentile(ordered, 99),
        max=ordered[-1],
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that `share` per cent of the ascending values do not exceed, between two of them in proportion."""
    place = (len(ordered) - 1) * share / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
