"""What `actorlm up` shows: one line a phase with the time it took, a bar for weights, one last line.

Where logs are JSON, what it shows is lines of the log.
"""

import sys
import time
from collections.abc import Callable

import structlog
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from actorlm.config import LogFormat

log = structlog.get_logger(__name__)


class _Terminal(Console):
    """A console that goes silent when its reader is gone, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Nobody reads: nothing more is said, and the tree goes on."""
        self.quiet = True


class Screen:
    """Lines and bars on standard error. Bars are drawn on terminals only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._console = _Terminal(file=sys.stderr, highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._bars: dict[str, TaskID] = {}

    def phase(self, actor: str, phase: str, seconds: float) -> None:
        """A phase has ended."""
        self._console.print(f"{actor:>14}  {phase}  {seconds:.1f} s", markup=False)

    def line(self, text: str, level: str = "info") -> None:
        """One line as it is. `level` is for those who filter lines; here all are shown."""
        self._console.print(text, markup=False)

    def ready(self, text: str) -> None:
        """The last line of a start."""
        self.close()
        self._console.print(f"ready after {self._clock() - self._began:.1f} s: {text}", markup=False)

    def bar(self, name: str, done: int, total: int) -> None:
        """Bytes done and in total; the bar goes when it is full."""
        if not self._console.is_terminal:
            return
        if self._progress is None:
            columns = (TextColumn("{task.description:>14}"), BarColumn(), DownloadColumn())
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._progress.start()
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=total)
        self._progress.update(self._bars[name], completed=done, total=total)
        if done >= total:
            self._progress.remove_task(self._bars.pop(name))
        if not self._bars:
            self.close()

    def close(self) -> None:
        """Takes the bars away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress, self._bars = None, {}


class LoggedScreen(Screen):
    """Says in the log what a screen would show. Bars are nothing for a log."""

    def phase(self, actor: str, phase: str, seconds: float) -> None:
        """A phase has ended."""
        log.info("phase ended", of=actor, phase=phase, seconds=round(seconds, 3))

    def line(self, text: str, level: str = "info") -> None:
        """The first line is the event; what follows it is a traceback."""
        event, _, traceback = text.partition("\n")
        getattr(log, level)(event.strip(), **({"exception": traceback} if traceback else {}))

    def ready(self, text: str) -> None:
        """The last line of a start."""
        log.info("ready", seconds=round(self._clock() - self._began, 3), text=text)

    def bar(self, name: str, done: int, total: int) -> None:
        """Nothing."""


def screen_for(log_format: LogFormat) -> Screen:
    """The screen of a tree whose logs have this format."""
    return LoggedScreen() if log_format == "json" else Screen()
