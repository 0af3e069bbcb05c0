"""The tables that `actorlm bench serve` prints."""

from rich import box
from rich.console import Console
from rich.table import Table

from actorlm.bench.distribution import Distribution
from actorlm.bench.serve_report import Report, Throughput

BUSY_CORES = 0.8
"""Above this share of a core the client may be what is measured."""


def print_report(report: Report, console: Console | None = None) -> None:
    """Counts and throughput, latencies, failures."""
    console = console or Console(markup=False, emoji=False, highlight=False)
    console.print(_totals(report))
    console.print(_latencies(report))
    if report.failures:
        console.print(_failures(report))
    for line in _remarks(report):
        console.print(line)


def _totals(report: Report) -> Table:
    table = _table(f"{report.model} at {report.url}", "")
    requests, traffic = report.requests, report.traffic
    rate = "all at once" if traffic.request_rate is None else f"{traffic.request_rate:g} a second"
    table.add_row("requests complete", f"{requests.complete:,} of {requests.planned:,}, {rate}")
    for name, count in (
        ("failed", requests.failed),
        ("interrupted", requests.interrupted),
        ("not sent", requests.not_sent),
        ("complete without a word", requests.empty),
    ):
        if count:
            table.add_row(f"requests {name}", f"{count:,}")
    table.add_row("under way together, at most", f"{requests.peak:,}")
    if report.throughput is not None:
        _add_throughput(table, report.throughput)
    return table


def _add_throughput(table: Table, figures: Throughput) -> None:
    table.add_row("seconds", f"{figures.seconds:,.2f}")
    table.add_row("requests/s", f"{figures.requests_per_s:,.2f}")
    table.add_row("input tokens/s", f"{figures.input_tokens_per_s:,.1f} ({figures.input_tokens:,} in all)")
    table.add_row("output tokens/s", f"{figures.output_tokens_per_s:,.1f} ({figures.output_tokens:,} in all)")


def _latencies(report: Report) -> Table:
    table = _table("ms", "mean", "median", "p90", "p99", "max")
    latency = report.latency
    for name, each in (
        ("time to first token", latency.time_to_first_token_ms),
        ("between events", latency.between_events_ms),
        ("per token after the first", latency.time_per_output_token_ms),
        ("end to end", latency.end_to_end_ms),
    ):
        table.add_row(name, *_cells(each))
    return table


def _cells(each: Distribution | None) -> list[str]:
    if each is None:
        return ["-"] * 5
    return [f"{value:,.2f}" for value in (each.mean, each.median, each.p90, each.p99, each.max)]


def _failures(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("failures", overflow="fold")
    table.add_column("requests", justify="right")
    table.add_column("for example", overflow="fold")
    for each in report.failures:
        table.add_row(each.kind, f"{each.count:,}", each.example[:200])
    return table


def _remarks(report: Report) -> list[str]:
    cost, lines = report.client, []
    if cost.cpu_us_per_event is not None:
        lines.append(
            f"This client used {cost.cpu_us_per_event:.1f} µs of CPU an event, {100 * cost.cores:.0f} % of a core."
        )
    if cost.cores > BUSY_CORES:
        lines.append(
            "That is nearly all one process has: the figures may be the client's; run several, or a lower load."
        )
    if report.throughput is not None and not report.throughput.counted:
        lines.append("The server gave no usage: an event is counted as a token, and input tokens are not known.")
    return lines


def _table(title: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(title, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right")
    return table
