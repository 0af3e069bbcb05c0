"""A picture of a run, written by hand: a panel for each figure, a bar for each server."""

from xml.sax.saxutils import escape

from peers.results import Results
from peers.summary import limit, spread, values
from peers.table import FIGURES, Figure, Peer
from peers.tables import number

WIDTH, LABELS, NUMBERS = 470, 118, 62
BAR, GAP, HEAD, FOOT = 15, 5, 30, 14
OURS, THEIRS, LIMIT = "#0b62a4", "#b8b8b8", "#c0392b"


def svg(results: Results) -> str:
    """Bars are medians, lines from the least to the most, red marks the machine's limit where it is in sight."""
    shown = [figure for figure in FIGURES if any(values(results, peer.name, figure) for peer in results.peers)]
    height = HEAD + FOOT + len(results.peers) * (BAR + GAP)
    panels = "".join(
        f'<g transform="translate({index % 2 * WIDTH},{44 + index // 2 * height})">{_panel(results, figure)}</g>\n'
        for index, figure in enumerate(shown)
    )
    whole = 44 + -(-len(shown) // 2) * height
    title = f"{results.machine['cpu']}, {results.machine['cores']} cores, {results.date[:10]}, commit {results.commit}"
    note = "bars: medians; thin lines: least to most; red: limit by bandwidth and arithmetic"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {whole}" font-family="sans-serif" '
        f'font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="10" y="18" font-size="14">SmolLM2-135M: {escape(title)}</text>\n'
        f'<text x="10" y="34" fill="#555">{note}</text>\n{panels}</svg>\n'
    )


def _panel(results: Results, figure: Figure) -> str:
    most = max(max(found) for peer in results.peers if (found := list(values(results, peer.name, figure).values())))
    scale = (WIDTH - LABELS - NUMBERS) / most
    better = "less is better" if figure.less else "more is better"
    title = f'<text x="10" y="20" font-weight="bold">{figure.title}, {figure.unit}</text>'
    side = f'<text x="{WIDTH - 10}" y="20" text-anchor="end" fill="#555">{better}</text>'
    bars = "".join(_bar(results, peer, figure, index, scale) for index, peer in enumerate(results.peers))
    return title + side + bars


def _bar(results: Results, peer: Peer, figure: Figure, index: int, scale: float) -> str:
    top = HEAD + index * (BAR + GAP)
    middle = top + BAR / 2
    label = f'<text x="{LABELS - 6}" y="{middle + 4}" text-anchor="end">{peer.name}</text>'
    found = list(values(results, peer.name, figure).values())
    if not found:
        return f'{label}<text x="{LABELS}" y="{middle + 4}" fill="#888">not measured</text>'
    one = spread(found)
    colour = OURS if peer.family == "actorlm" else THEIRS
    right = LABELS + one.high * scale
    marks = (
        f'<rect x="{LABELS}" y="{top}" width="{one.median * scale:.1f}" height="{BAR}" fill="{colour}"/>'
        f'<path d="M{LABELS + one.low * scale:.1f} {middle}H{right:.1f}" stroke="#222"/>'
        f'<text x="{right + 5:.1f}" y="{middle + 4}">{number(one.median)}</text>'
    )
    best = limit(results, peer, figure)
    x = LABELS + (best or 0.0) * scale
    if best is not None and x <= WIDTH - 4:
        marks += f'<path d="M{x:.1f} {top - 2}v{BAR + 4}" stroke="{LIMIT}" stroke-width="2"/>'
    return label + marks
