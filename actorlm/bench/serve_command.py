"""`actorlm bench serve` as a command: runs the loop, prints the tables, writes the files."""

import resource
from pathlib import Path
from typing import Literal

import msgspec
import rich_click as click
import uvloop

from actorlm.bench.plot import svg
from actorlm.bench.serve import measure
from actorlm.bench.serve_report import Report, report
from actorlm.bench.serve_table import print_report
from actorlm.bench.traffic import Traffic
from actorlm.errors import ConfigError
from actorlm.remote.server import Server
from actorlm.screen import Screen

Ending = Literal["fine", "failed", "interrupted"]


class Files(msgspec.Struct, frozen=True):
    """Where results go besides the terminal; `json` "-" is standard output, in place of the tables."""

    json: str | None = None
    plot: Path | None = None

    def check(self) -> None:
        """Raises ConfigError for a place that cannot be written, before anything is measured."""
        if self.plot is not None and self.plot.suffix != ".svg":
            raise ConfigError(f"--plot is {self.plot}; its name must end with .svg, which is what is drawn")
        for option, path in (
            ("--json", None if self.json in (None, "-") else Path(str(self.json))),
            ("--plot", self.plot),
        ):
            if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
                raise ConfigError(f"{option} is {path}; it must be a file in a directory that exists")


def run_bench(server: Server, url: str, traffic: Traffic, *, model: str | None, warmup: int, files: Files) -> Ending:
    """Measures and shows. "failed" means that no request was complete. Raises Failure before the first request."""
    told = Screen().line
    _allow_files()
    run = uvloop.run(measure(server, traffic, model=model, warmup=warmup, told=told))
    result = report(run, traffic, url)
    if files.json == "-":
        click.echo(_json(result).decode())
    else:
        print_report(result)
    if files.json not in (None, "-"):
        Path(str(files.json)).write_bytes(_json(result))
    if files.plot is not None:
        files.plot.write_text(svg(result, run.outcomes), encoding="utf-8")
    if run.interrupted:
        return "interrupted"
    return "fine" if result.requests.complete else "failed"


def _allow_files() -> None:
    """As many as this user may open: every request under way has a socket."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _json(result: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=2)
