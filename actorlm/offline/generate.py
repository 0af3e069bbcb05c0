"""`actorlm generate`: rows of a file through a model, each answer written as soon as it is there.

What is wrong with the form of a line is told before the model is loaded. What only the model can tell, such as a prompt
that does not fit, becomes an answer with an error, and the other rows go on.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from actorlm.config import Config
from actorlm.errors import BadRequest
from actorlm.offline.batch import Job
from actorlm.offline.output_file import OutputFile
from actorlm.offline.progress import Bar
from actorlm.offline.prompts import Preparation, Prompted, prompt_seeds
from actorlm.offline.rows import Defaults, Row, answered, check_rows, parse, read_lines, refused
from actorlm.offline.session import load
from actorlm.planning import kernels
from actorlm.screen import Screen


def generate(
    config: Config, source: Path, target: Path | None, *, defaults: Defaults, seed: int | None, screen: Screen
) -> bool:
    """Answers all rows of `source` that have no answer in `target` yet; says at the end what became of them.

    Without `target`, answers go to standard output. True if no answer is an error. Raises ActorlmError.
    """
    if target is not None and target.exists() and source.exists() and target.samefile(source):
        raise BadRequest(f"{source} is input and output; name another output")
    if source.exists() and not source.is_file():
        raise BadRequest(f"{source} is no regular file; it is read twice, so save the rows in one")
    keys = check_rows(source)
    with OutputFile(target, keys) as output:
        before, began = len(output.done), time.monotonic()
        if before < len(keys):
            try:
                tokens = _run(config, source, output, len(keys), defaults, seed, screen)
            except KeyboardInterrupt:
                if target is not None:
                    screen.line(
                        f"{len(output.done)} of {len(keys)} rows are in {target}; the same command goes on there"
                    )
                raise
            seconds = time.monotonic() - began
            screen.line(f"{len(output.done) - before} rows, {tokens:,} tokens in {seconds:.1f} s, loading included")
        if before:
            screen.line(f"{before} rows had answers in {target} already")
        if len(output.done) != len(keys):
            raise BadRequest(f"{source} changed while it was read; run the command again")
        if output.errors:
            screen.line(f"{output.errors} of {len(keys)} answers are errors")
        return not output.errors


def _run(
    config: Config,
    source: Path,
    output: OutputFile,
    total: int,
    defaults: Defaults,
    seed: int | None,
    screen: Screen,
) -> int:
    """Loads the model and answers what is not done; returns the tokens generated."""
    session = load(config, screen)
    screen.line(f"kernels: {kernels(config)}")
    rows: dict[int, Row] = {}
    generated = 0
    jobs = _jobs(source, rows, output, session.preparation, defaults, seed)
    try:
        shown = not output.is_terminal and sys.stderr.isatty()
        with closing(session.run(jobs)) as steps, Bar(total, wanted=shown, done=len(output.done)) as bar:
            for tokens, complete in steps:
                for job, result in complete:
                    output.append(answered(job.index, rows.pop(job.index), result))
                generated += tokens
                bar.update(len(output.done), generated)
    finally:
        session.close()
    return generated


def _jobs(
    source: Path,
    rows: dict[int, Row],
    output: OutputFile,
    preparation: Preparation,
    defaults: Defaults,
    seed: int | None,
) -> Iterator[Job]:
    """The jobs of rows that are not done, kept in `rows` until they are; what cannot be run is answered at once."""
    seed_of = prompt_seeds(seed)
    for index, (number, line) in enumerate(read_lines(source)):
        if index in output.done:
            continue
        row = parse(number, line)
        try:
            prompted, params = _prompted(preparation, row), row.params(defaults)
            where = row.prompt_field
            job = preparation.job(index, str(index), prompted, params, seed=seed_of(index), where=where)
        except BadRequest as error:
            output.append(refused(index, row, error))
            continue
        rows[index] = row
        yield job


def _prompted(preparation: Preparation, row: Row) -> Prompted:
    if row.messages is not None:
        return preparation.rendered(row.messages, row.prompt_field)
    return preparation.prompted(row.prompt if row.prompt is not None else row.prompt_token_ids or [], row.prompt_field)
