"""The command line. Imports of what a command needs wait until it runs."""
# ruff: noqa: PLC0415 - see above

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import rich_click as click
from click.exceptions import NoArgsIsHelpError

from actorlm import __version__
from actorlm.cli_api_keys import api_keys
from actorlm.cli_end import FAILED, MISUSED, finish, logged
from actorlm.cli_keys import keys
from actorlm.cli_operator import COMMANDS as OPERATOR_COMMANDS
from actorlm.cli_remote import bench_serve, chat
from actorlm.cli_replay import replay
from actorlm.config import Config, environment
from actorlm.deployment import this_host
from actorlm.errors import ConfigError
from actorlm.offline.options import OFFLINE_OPTIONS
from actorlm.options import OPTIONS, Option, merge
from actorlm.sampling import MAX_SEED, MIN_SEED

click.rich_click.OPTION_GROUPS = {
    f"actorlm {command}": [
        {"name": group, "options": [option.flag for option in options if option.group == group]}
        for group in dict.fromkeys(option.group for option in options)
    ]
    for command, options in {
        "up": OPTIONS, "record": OPTIONS, "plan": OPTIONS,
        "generate": OFFLINE_OPTIONS, "bench offline": OFFLINE_OPTIONS,
    }.items()
}  # fmt: skip


class _Commands(click.RichGroup):
    """Says what is wrong with a command line as every error is said: in one line."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a command; exits with 2 for one that cannot be understood."""
        try:
            return super().main(*args, **{**kwargs, "standalone_mode": False})
        except NoArgsIsHelpError as error:
            error.show()
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx else "actorlm"
            click.echo(f"actorlm: {error.format_message()} (see `{command} --help`)", err=True)
        raise SystemExit(MISUSED)


@click.group(cls=_Commands)
@click.version_option(__version__, prog_name="actorlm")
def main() -> None:
    """Serve large language models; every part is an actor."""


def _click_option(option: Option) -> Callable[[Any], Any]:
    flag = f"{option.flag}/--no-{option.flag.removeprefix('--')}" if option.is_switch else option.flag
    kind = click.Choice(option.choices) if option.choices else str
    unit = f" ({option.unit})" if option.unit else ""
    default = "" if option.default is None else f" [{_spell(option)}]"
    return click.option(
        flag,
        option.parameter,
        default=None,
        type=bool if option.is_switch else kind,
        metavar=None if option.is_switch or option.choices else (option.unit or "VALUE").upper(),
        help=f"{option.help}{unit}{default}",
    )


def _spell(option: Option) -> str:
    if option.is_switch:
        return "on" if option.default else "off"
    return str(option.default)


def _configured(options: Sequence[Option]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command these options, and MODEL, which may be a deployment file."""

    def configured(command: Callable[..., None]) -> Callable[..., None]:
        command = click.argument("model_argument", metavar="[MODEL|FILE.toml]", required=False)(command)
        for option in reversed(options):
            command = _click_option(option)(command)
        return command

    return configured


def _config(model_argument: str | None, flags: dict[str, Any]) -> Config:
    file = None
    if model_argument is not None and model_argument.endswith(".toml"):
        file = Path(model_argument)
    elif model_argument is not None:
        if flags["model"] is not None:
            raise ConfigError(f"MODEL is given twice: {model_argument} and --model {flags['model']}")
        flags["model"] = model_argument
    return merge(flags, environment(), file)


_on = click.option("--on", metavar="HOST", help="which host of the file this is")


@main.command()
@_on
@_configured(OPTIONS)
def up(model_argument: str | None, on: str | None, **flags: Any) -> None:
    """Serve MODEL over the OpenAI API, in the foreground, until SIGTERM (drains) or Ctrl-C (stops at once)."""
    finish(lambda: _serve(model_argument, on, flags))


@main.command()
@click.argument("directory", metavar="DIR")
@_on
@_configured(OPTIONS)
def record(directory: str, model_argument: str | None, on: str | None, **flags: Any) -> None:
    """Serve MODEL as `up` does, and have each EngineCore record for `replay` what its scheduler is asked.

    The files go to DIR. It is `up` with --record-dir: a recording begins with its scheduler, never later.
    """

    def serve() -> int:
        if flags["record_dir"] is not None:
            raise ConfigError(f"DIR is given twice: {directory} and --record-dir {flags['record_dir']}")
        return _serve(model_argument, on, flags | {"record_dir": directory})

    finish(serve)


def _serve(model_argument: str | None, on: str | None, flags: dict[str, Any]) -> int:
    config = _config(model_argument, flags)
    os.environ["SPT_NOENV"] = "1"  # a process title must not overwrite the environment that others may read
    from setproctitle import setproctitle

    from actorlm.log import configure_logging
    from actorlm.up import leave_on_signals, run_tree

    host, log_format = this_host(config, on), config.observability.log_format
    leave_on_signals()
    if config.parallel.executor == "external":
        from actorlm.external import run_rank

        return run_rank(config)
    name = "supervisor" if host == config.lead else f"host {host}"
    setproctitle(f"actorlm {name}")
    configure_logging(config.supervision.log_level, name, log_format)

    def run() -> int:
        if host == config.lead:
            return run_tree(config, file=str(model_argument))
        from actorlm.host import run_host

        return run_host(config, host, str(model_argument))

    return logged(run) if log_format == "json" else run()


@main.command()
@_configured(OPTIONS)
def plan(model_argument: str | None, **flags: Any) -> None:
    """Print the actors, processes, devices, addresses and memory that `up` would start. Starts nothing."""

    def show() -> int:
        config = _config(model_argument, flags)
        from actorlm.planning import describe_present, kernels, plan_tree, with_types
        from actorlm.tables import print_plan

        model = describe_present(config)
        config = with_types(config, model)
        print_plan(plan_tree(config, model, "RUN"), config, model, kernels(config))
        return 0

    finish(show)


@main.command()
@click.argument("name")
def pull(name: str) -> None:
    """Fetch a model that has a short name (smollm2-135m) into the cache."""

    def fetch() -> int:
        from actorlm.checkpoint.pull import pull as pull_model
        from actorlm.screen import Screen

        screen = Screen()
        try:
            path = pull_model(name, progress=screen.bar)
        finally:
            screen.close()
        click.echo(path)
        return 0

    finish(fetch)


@main.command()
@click.option("-i", "--input", "source", required=True, type=Path, metavar="FILE", help="rows to answer, JSONL")
@click.option(
    "-o",
    "--output",
    "target",
    type=Path,
    metavar="FILE",
    help="answers, JSONL; rows that have one there are skipped [standard output]",
)
@click.option("--max-tokens", type=click.IntRange(min=1), help="for rows that do not say [16]")
@click.option("--temperature", type=click.FloatRange(0, 2), help="for rows that do not say [1.0]")
@click.option("--seed", type=click.IntRange(MIN_SEED, MAX_SEED), help="makes the rows without a seed repeatable")
@_configured(OFFLINE_OPTIONS)
def generate(
    model_argument: str | None,
    source: Path,
    target: Path | None,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    **flags: Any,
) -> None:
    """Answer the rows of a JSONL file with MODEL, in this process; go on where an earlier run stopped.

    A row has `prompt`, `prompt_token_ids` or `messages`, perhaps `id`, and sampling fields.
    """

    def answer() -> int:
        config = _config(model_argument, flags)
        from actorlm.offline.generate import generate as generate_rows
        from actorlm.offline.rows import Defaults
        from actorlm.params import DEFAULT_MAX_TOKENS
        from actorlm.screen import Screen

        _share_cores()

        defaults = Defaults(max_tokens=max_tokens or DEFAULT_MAX_TOKENS, temperature=temperature)
        fine = generate_rows(config, source, target, defaults=defaults, seed=seed, screen=Screen())
        return 0 if fine else FAILED

    finish(answer)


@main.group()
def bench() -> None:
    """Measure."""


bench.add_command(bench_serve)
main.add_command(chat)
for command in OPERATOR_COMMANDS:
    main.add_command(command)
main.add_command(api_keys)
main.add_command(replay)
main.add_command(keys)


def _count(name: str, default: int, least: int, help_text: str) -> Callable[[Any], Any]:
    return click.option(name, type=click.IntRange(min=least), default=default, help=f"{help_text} [{default}]")


@bench.command("offline")
@_count("--num-prompts", 32, 1, "prompts run together")
@_count("--input-len", 128, 1, "tokens of each prompt")
@_count("--output-len", 64, 2, "tokens generated for each prompt")
@_count("--shared-prefix", 0, 0, "tokens that all prompts of a round begin with")
@_count("--rounds", 3, 1, "rounds after one that warms up; figures are their medians")
@_count("--seed", 0, 0, "of the random prompts")
@click.option("--json", "as_json", is_flag=True, help="print every round, as JSON")
@_configured(OFFLINE_OPTIONS)
def bench_offline(
    model_argument: str | None,
    num_prompts: int,
    input_len: int,
    output_len: int,
    shared_prefix: int,
    rounds: int,
    seed: int,
    as_json: bool,
    **flags: Any,
) -> None:
    """Measure MODEL in this process: throughput of many random prompts, latency of one stream."""

    def run() -> int:
        config = _config(model_argument, flags)
        import msgspec

        from actorlm.bench.offline import Workload, check, measure
        from actorlm.bench.offline_table import print_report
        from actorlm.offline.session import load
        from actorlm.planning import kernels
        from actorlm.screen import Screen

        workload = Workload(
            num_prompts=num_prompts, input_len=input_len, output_len=output_len, shared_prefix=shared_prefix
        )
        check(workload)
        _share_cores()
        screen = Screen()
        session = load(config, screen)
        report = measure(
            session,
            workload,
            rounds=rounds,
            seed=seed,
            weights=session.config.model.weights,
            kernels=kernels(session.config),
            told=screen.line,
        )
        if as_json:
            click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
        else:
            print_report(report)
        return 0

    finish(run)


def _share_cores() -> None:
    """Has this process wait for its threads as the workers of a tree do. To be called before torch is imported."""
    from actorlm.planning import SPIN_COUNT, SPIN_VARIABLE

    os.environ.setdefault(SPIN_VARIABLE, SPIN_COUNT)
