"""`actorlm replay`: a recorded scheduler does it again, without model, workers or sockets."""

import sys
from collections.abc import Iterable
from pathlib import Path

import rich_click as click
from rich import box
from rich.console import Console
from rich.table import Table

from actorlm.cli_end import FAILED, finish
from actorlm.config import BLOCK_SIZE

PAPER = 200
"""Columns of an output that is no terminal."""


@click.command()
@click.argument("file", type=Path)
@click.option("--step", type=click.IntRange(min=0), help="stop when this step has been planned, and show the requests")
@click.option("--check/--no-check", default=True, help="prove the accounts of blocks and slots after each step [on]")
def replay(file: Path, step: int | None, check: bool) -> None:
    """Feed FILE, a recording of an EngineCore, to its scheduler, and compare every decision.

    The exit status is 0 if all are the same, 1 at the first that is not.
    """
    finish(lambda: _replay(file, step, check))


def _replay(file: Path, step: int | None, check: bool) -> int:
    from actorlm.recording.records import Recording  # noqa: PLC0415 - imports wait until a command runs
    from actorlm.recording.replay import Replay, describe  # noqa: PLC0415

    width = None if sys.stdout.isatty() else PAPER
    console = Console(markup=False, emoji=False, highlight=False, width=width)
    recording = Recording(file)
    header = recording.header
    console.print(
        f"{header.actor}, recorded {header.recorded} by actorlm {header.version}"
        f"{', redacted' if header.redacted else ''}: {header.num_blocks:,} blocks"
    )
    run = Replay(header, check=check)
    try:
        difference = run.run(recording.records(), step)
    finally:
        recording.close()
    totals = run.totals
    console.print(
        f"{totals.records:,} records of {totals.seconds:.3f} s: {totals.requests:,} requests, {totals.steps:,} steps,"
        f" {totals.tokens:,} tokens"
    )
    if recording.truncated:
        console.print("the file ends in the middle of a record, which is left out")
    if totals.ended:
        console.print(f"the recording ended before its replica: {totals.ended}")
    if difference is not None:
        console.print(f"record {difference.record}, at step {difference.step}, differs:")
        for line in difference.lines:
            console.print(f"  {line}")
    if difference is not None or step is not None:
        flying = ", ".join(map(str, run.steps_in_flight)) or "none"
        console.print(f"steps in flight: {flying}; blocks in use: {run.scheduler.kv_used_tokens // BLOCK_SIZE:,}")
        console.print(_table(map(describe, sorted(run.scheduler.requests, key=lambda request: request.rank))))
    if difference is None:
        console.print("every decision is the same")
    return 0 if difference is None else FAILED


def _table(rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in (
        "request",
        "attempt",
        "state",
        "slot",
        "rank",
        "tokens",
        "prompt",
        "computed",
        "preempted",
        "blocks",
    ):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
