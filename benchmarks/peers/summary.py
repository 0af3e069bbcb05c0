"""What a run comes to: medians, how they spread, their shares of the machine's limit, and ratios of rounds. Pure."""

import statistics
from collections.abc import Sequence

import msgspec

from peers.limits import Machine, seconds
from peers.results import Results
from peers.table import AIMS, FIGURES, WORK, Aim, Figure, Peer


class Spread(msgspec.Struct, frozen=True):
    """Of so many measurements."""

    median: float
    low: float
    high: float
    count: int


class Ratio(msgspec.Struct, frozen=True):
    """Ours divided by another's, round by round. `reached` says whether it is what it is to be."""

    ours: str
    other: str
    figure: Figure
    aim: float
    spread: Spread
    reached: bool


def spread(values: Sequence[float]) -> Spread:
    """Of at least one."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def machine(results: Results) -> Machine:
    """The medians of what was measured between rows."""
    fields = Machine.__struct_fields__
    return Machine(*(statistics.median(getattr(rates, name) for rates in results.rates) for name in fields))


def values(results: Results, peer: str, figure: Figure) -> dict[int, float]:
    """By round; starts are numbered, too."""
    if figure.row == "start":
        starts = [each for each in results.started if each.peer == peer]
        return {number: getattr(each, figure.field) for number, each in enumerate(starts)}
    rounds = [each for each in results.rounds if (each.peer, each.row) == (peer, figure.row)]
    return {each.round: found for each in rounds if (found := getattr(each, figure.field)) is not None}


def limit(results: Results, peer: Peer, figure: Figure) -> float | None:
    """The best that the figure could be on this machine with these weights; None if no limit is derived for it."""
    if figure.field not in ("tokens_per_s", "first_s"):
        return None
    work = WORK[figure.row]
    least = seconds(work, results.model, machine(results), results.weight_bytes[peer.weights], peer.arithmetic)
    return least if figure.less else work.requests * work.output_len / least


def share(figure: Figure, value: float, best: float) -> float:
    """Of the limit that was reached: 1 is all of it."""
    return best / value if figure.less else value / best


def ratios(results: Results) -> list[Ratio]:
    """One for each of ours that was measured, against the best of those that it is compared with."""
    known = {(figure.row, figure.field): figure for figure in FIGURES}
    found = [_ratio(results, aim, ours, known[aim.row, aim.field]) for aim in AIMS for ours in aim.ours]
    return [ratio for ratio in found if ratio is not None]


def _ratio(results: Results, aim: Aim, ours: str, figure: Figure) -> Ratio | None:
    mine = values(results, ours, figure)
    others = {name: found for name in aim.others if (found := values(results, name, figure))}
    if not mine or not others:
        return None
    best = (min if figure.less else max)(others, key=lambda name: statistics.median(others[name].values()))
    reached = _pairs(mine, others[best])
    good = reached.median <= aim.factor if figure.less else reached.median >= aim.factor
    return Ratio(ours, best, figure, aim.factor, reached, good)


def _pairs(mine: dict[int, float], other: dict[int, float]) -> Spread:
    """Of the rounds that both have."""
    return spread([mine[number] / other[number] for number in sorted(mine.keys() & other.keys())])
