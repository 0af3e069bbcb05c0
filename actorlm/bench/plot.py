"""The plot that `actorlm bench serve` draws: one SVG of four panels, written by hand, for any browser."""

import math
from collections import Counter
from collections.abc import Sequence
from xml.sax.saxutils import escape

from actorlm.bench.recording import Outcome
from actorlm.bench.serve_report import Report

WIDTH, HEIGHT = 460, 270
"""Of one panel, in pixels."""
LEFT, RIGHT, TOP, BOTTOM = 62, 18, 34, 44
MAX_POINTS = 400
BUCKETS = 60

Point = tuple[float, float]


def svg(report: Report, outcomes: Sequence[Outcome]) -> str:
    """Shares of requests, or of events, that were as fast; and events a second over the run."""
    sound = [one for one in outcomes if one.failure is None]
    panels = [
        _panel("time to first token", "ms", "% of requests", _shares([one.first for one in sound])),
        _panel("between events", "ms", "% of events", _shares([gap for one in sound for gap in one.gaps])),
        _panel("end to end", "ms", "% of requests", _shares([one.ended - one.began for one in sound if one.whole])),
        _panel("events a second", "s", "", _rates(sound)),
    ]
    title = f"{report.model} at {report.url}: {report.requests.complete} of {report.requests.planned} requests"
    placed = "".join(
        f'<g transform="translate({index % 2 * WIDTH},{30 + index // 2 * HEIGHT})">{panel}</g>\n'
        for index, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {30 + 2 * HEIGHT}" '
        f'font-family="sans-serif" font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>\n{placed}</svg>\n'
    )


def _shares(seconds: Sequence[float | None]) -> list[Point]:
    """Milliseconds, and the share of measurements that took no longer."""
    ordered = sorted(1000 * each for each in seconds if each is not None)
    step = max(1, len(ordered) // MAX_POINTS)
    kept = [*range(0, len(ordered), step), len(ordered) - 1] if ordered else []
    return [(ordered[index], 100 * (index + 1) / len(ordered)) for index in kept]


def _rates(outcomes: Sequence[Outcome]) -> list[Point]:
    """Seconds from the first request, and events a second in each of some spans of the same length."""
    times = [time for one in outcomes for time in one.times]
    if not times:
        return []
    began = min(one.began for one in outcomes)
    width = (max(times) - began) / BUCKETS or 1.0
    counts = Counter(min(BUCKETS - 1, int((time - began) / width)) for time in times)
    return [((index + 0.5) * width, counts[index] / width) for index in range(BUCKETS)]


def _panel(title: str, unit: str, height: str, points: Sequence[Point]) -> str:
    right, low = WIDTH - RIGHT, HEIGHT - BOTTOM
    frame = (
        f'<text x="{LEFT}" y="{TOP - 10}" font-size="12">{title}</text>'
        f'<text x="{right}" y="{HEIGHT - 10}" text-anchor="end">{unit}</text>'
        f'<text x="{right}" y="{TOP - 10}" text-anchor="end">{height}</text>'
        f'<path d="M{LEFT} {TOP}V{low}H{right}" fill="none" stroke="#888"/>'
    )
    if not points:
        return (
            f'{frame}<text x="{(LEFT + right) / 2}" y="{(TOP + low) / 2}" text-anchor="middle">nothing measured</text>'
        )
    most_x, most_y = (_round_up(max(values) or 1.0) for values in zip(*points, strict=True))
    marks = "".join(_mark(share, most_x, most_y) for share in (0, 0.25, 0.5, 0.75, 1))
    line = " ".join(f"{LEFT + (right - LEFT) * x / most_x:.1f},{low - (low - TOP) * y / most_y:.1f}" for x, y in points)
    return f'{frame}{marks}<polyline points="{line}" fill="none" stroke="#0b62a4" stroke-width="1.5"/>'


def _round_up(value: float) -> float:
    """To a number whose quarters are short."""
    scale = 10.0 ** math.floor(math.log10(value))
    return next(scale * step for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 5, 6, 8, 10) if scale * step >= value)


def _mark(share: float, most_x: float, most_y: float) -> str:
    x, y = LEFT + (WIDTH - RIGHT - LEFT) * share, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share
    return (
        f'<text x="{x:.0f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{most_x * share:,.4g}</text>'
        f'<text x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{most_y * share:,.4g}</text>'
        f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
    )
