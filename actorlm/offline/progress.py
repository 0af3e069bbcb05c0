"""The bar of a run: prompts done, tokens per second. On standard error, and only if that is a terminal."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar:
    """A context manager that draws while it is entered. `done` of the `total` prompts were done before.

    `wanted` False draws nothing.
    """

    def __init__(
        self,
        total: int,
        *,
        wanted: bool = True,
        done: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(file=sys.stderr)
        columns = (
            TextColumn("prompts"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[rate]}"),
        )
        shown = wanted and self._console.is_terminal
        self._progress = Progress(*columns, console=self._console, disable=not shown)
        self._task = self._progress.add_task("", total=total, completed=done, rate="")
        self._clock = clock
        self._began = clock()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, done: int, tokens: int) -> None:
        """So many prompts are done, and so many tokens were generated since the bar was made."""
        rate = tokens / max(self._clock() - self._began, 1e-9)
        self._progress.update(self._task, completed=done, rate=f"{rate:,.1f} tokens/s")
