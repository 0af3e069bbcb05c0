"""How long launches take."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

FLUSHED_BYTES = 256 << 20
"""More than the second-level cache of any card."""


class Spread(NamedTuple):
    """Seconds of one launch: the median of some, the least and the most."""

    median: float
    least: float
    most: float


class Clock(Protocol):
    """Times what is launched on a device."""

    def __call__(self, launch: Callable[[], object]) -> Spread:
        """Several times, after it was launched once."""


def spread(seconds: list[float]) -> Spread:
    """Of some measurements."""
    return Spread(statistics.median(seconds), min(seconds), max(seconds))


class CudaClock:
    """By events on the device. What the second-level cache holds is flushed before each launch."""

    def __init__(self, repeats: int = 20) -> None:
        self._repeats = repeats
        self._flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")

    def __call__(self, launch: Callable[[], object]) -> Spread:
        """See `Clock`."""
        launch()
        pairs = [(_event(), _event()) for _ in range(self._repeats)]
        for begin, end in pairs:
            self._flushed.zero_()
            begin.record()
            launch()
            end.record()
        torch.cuda.synchronize()
        return spread([begin.elapsed_time(end) / 1000 for begin, end in pairs])


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event


class WallClock:
    """For a CPU, where launches are done when they return."""

    def __init__(self, repeats: int = 2) -> None:
        self._repeats = repeats

    def __call__(self, launch: Callable[[], object]) -> Spread:
        """See `Clock`."""
        launch()
        seconds = []
        for _ in range(self._repeats):
            began = time.perf_counter()
            launch()
            seconds.append(time.perf_counter() - began)
        return spread(seconds)
