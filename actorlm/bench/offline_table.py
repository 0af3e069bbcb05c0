"""The table that `actorlm bench offline` prints."""

from rich import box
from rich.console import Console
from rich.table import Table

from actorlm.bench.offline import Report


def print_report(report: Report) -> None:
    """The medians of a report."""
    together, alone, work = report.throughput, report.latency, report.workload
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(
        f"{report.model}, {report.weights}, {report.threads} threads, kernels: {report.kernels}", overflow="fold"
    )
    table.add_column(f"median of {len(report.latency_rounds)}", justify="right")
    for name, value in (
        (f"{work.num_prompts} prompts of {work.input_len} tokens, {work.output_len} out:", None),
        ("  output tokens/s", together.output_tokens_per_s),
        ("  prompt and output tokens/s", together.total_tokens_per_s),
        ("  requests/s", together.requests_per_s),
        ("  prompt tokens from the prefix cache", together.cached_tokens),
        ("one prompt alone:", None),
        ("  time to first token, ms", alone.time_to_first_token_ms),
        ("  time per output token, ms", alone.time_per_output_token_ms),
        ("  output tokens/s", alone.output_tokens_per_s),
    ):
        table.add_row(name, "" if value is None else f"{value:,.2f}")
    Console(markup=False, emoji=False).print(table)
