"""Markdown tables of a run: figures, shares of the machine's limit, ratios."""

from collections.abc import Iterable, Sequence

from peers.results import Results
from peers.summary import Spread, limit, machine, ratios, share, spread, values
from peers.table import FIGURES

LIMITED = tuple(figure for figure in FIGURES if figure.field in ("tokens_per_s", "first_s"))
QUIET_CORES = 0.1


def markdown(results: Results) -> str:
    """What docs/performance.md takes."""
    return "\n\n".join((about(results), figures(results), shares(results), compared(results)))


def about(results: Results) -> str:
    """Machine, commit, versions, command, and how fast the machine was."""
    is_, rates = results.machine, machine(results)
    loud = [each for each in results.rounds if each.others_cores > QUIET_CORES]
    return (
        f"{is_['cores']} cores of {is_['cpu']} (family {is_['family']}, model {is_['model']}; "
        f"{', '.join(map(str, _list(is_['flags'])))}), {is_['memory_gib']} GiB, Linux {is_['kernel']}; "
        f"{results.date}, commit {results.commit}; "
        f"{', '.join(f'{name} {version}' for name, version in results.versions.items())}.\n\n"
        f"`{' '.join(results.command)}`\n\n"
        f"Two threads read {rates.read_gb_s:.1f} GB/s, and compute {rates.fp32_gflop_s:.0f} GFLOP/s in float32 and "
        f"{rates.int8_gop_s:.0f} GOP/s in int8, {rates.bf16_gflop_s:.0f} GFLOP/s in bfloat16. "
        f"In {len(loud)} of {len(results.rounds)} rounds other processes took more than {QUIET_CORES} cores."
    )


def figures(results: Results) -> str:
    """Medians with least and most, a line for each server."""
    shown = [figure for figure in FIGURES if any(values(results, peer.name, figure) for peer in results.peers)]
    rows = [
        [peer.name, *(_cell(list(values(results, peer.name, figure).values())) for figure in shown)]
        for peer in results.peers
    ]
    return _table(["server", *(f"{figure.title}, {figure.unit}" for figure in shown)], rows)


def shares(results: Results) -> str:
    """Medians as shares of the limit that follows from weights, bandwidth and arithmetic."""
    shown = [figure for figure in LIMITED if any(values(results, peer.name, figure) for peer in results.peers)]
    rows = []
    for peer in results.peers:
        cells = []
        for figure in shown:
            found, best = list(values(results, peer.name, figure).values()), limit(results, peer, figure)
            whole = found and best is not None
            cells.append(f"{share(figure, spread(found).median, best):.0%} of {number(best)}" if whole else "")
        rows.append([peer.name, *cells])
    return _table(["share of the limit", *(f"{figure.title}, {figure.unit}" for figure in shown)], rows)


def compared(results: Results) -> str:
    """Ratios of rounds."""
    rows = [
        [
            f"{ratio.figure.title}, {ratio.figure.unit}",
            ratio.ours,
            ratio.other,
            f"{ratio.spread.median:.2f} ({ratio.spread.low:.2f} to {ratio.spread.high:.2f})",
            f"{'at most' if ratio.figure.less else 'at least'} {ratio.aim}",
            "yes" if ratio.reached else "no",
        ]
        for ratio in ratios(results)
    ]
    return _table(["work", "ours", "divided by", "ratio (of rounds)", "aim", "reached"], rows)


def _cell(found: Sequence[float]) -> str:
    if not found:
        return ""
    one: Spread = spread(found)
    return number(one.median) if one.count == 1 else f"{number(one.median)} ({number(one.low)}-{number(one.high)})"


def number(value: float) -> str:
    """Three digits, or all of those before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _list(value: object) -> list[object]:
    assert isinstance(value, list), "a machine has a list of flags"
    return value
