"""The commands that ask a service: `bench serve`, `chat`. Imports of what they need wait until they run."""
# ruff: noqa: PLC0415 - see above

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rich_click as click

from actorlm.cli_end import FAILED, INTERRUPTED, finish
from actorlm.config import client_api_key
from actorlm.errors import ConfigError
from actorlm.sampling import MAX_PENALTY, MAX_REPETITION_PENALTY, MAX_SEED, MIN_REPETITION_PENALTY, MIN_SEED

_api_key = click.option("--api-key", metavar="KEY", help="sent as a bearer token [OPENAI_API_KEY]")

_penalty = click.FloatRange(-MAX_PENALTY, MAX_PENALTY)

SEEDS = 1 << 32
"""Drawn ones are below it."""


def _number(name: str, default: int, least: int, help_text: str) -> Callable[[Any], Any]:
    return click.option(name, type=click.IntRange(min=least), default=default, help=f"{help_text} [{default}]")


@click.command("serve")
@click.option("--url", required=True, metavar="URL", help="of the server, like http://127.0.0.1:8000")
@click.option("--model", metavar="NAME", help="name to ask for [the first of /v1/models]")
@_api_key
@click.option("--api", type=click.Choice(["completions", "chat"]), default="completions", help="route [completions]")
@click.option(
    "--prompts",
    type=click.Choice(["text", "ids"]),
    default="text",
    help="common words, counted as the server counts them, or random token ids [text]",
)
@_number("--num-prompts", 64, 1, "requests in all")
@click.option("--input-len", default="128", metavar="N|MIN-MAX", help="tokens of each prompt [128]")
@click.option("--output-len", default="64", metavar="N|MIN-MAX", help="tokens to be generated for each prompt [64]")
@_number("--shared-prefix", 0, 0, "tokens that all prompts begin with")
@click.option(
    "--request-rate",
    default="inf",
    metavar="RATE",
    help="requests a second, a Poisson process; inf is all at once [inf]",
)
@click.option("--max-concurrency", type=click.IntRange(min=1), help="requests under way together, at most [no bound]")
@click.option("--ignore-eos/--no-ignore-eos", default=True, help="generate past ends of text [on]")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, help="0 is greedy [0]")
@click.option("--vocab-size", type=click.IntRange(min=1), help="with --prompts ids: ids are below it [256]")
@click.option("--seed", type=click.IntRange(min=0), help="of prompts, lengths and arrivals [drawn, and shown]")
@_number("--warmup", 2, 0, "requests that come first and are not measured")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=600.0, help="seconds a request may take [600]"
)
@click.option("--json", "json_file", metavar="FILE", help="write everything there, each request too; - prints it")
@click.option("--plot", "plot_file", type=Path, metavar="FILE.svg", help="draw latencies and the rate of events")
def bench_serve(
    url: str,
    model: str | None,
    api_key: str | None,
    input_len: str,
    output_len: str,
    request_rate: str,
    vocab_size: int | None,
    seed: int | None,
    warmup: int,
    timeout: float,
    json_file: str | None,
    plot_file: Path | None,
    **figures: Any,
) -> None:
    """Measure a server that speaks the OpenAI API, as its clients see it. Ctrl-C prints what was measured."""

    def run() -> int:
        from actorlm.bench.serve_command import Files, run_bench
        from actorlm.bench.traffic import DEFAULT_VOCAB_SIZE, Traffic, check, parse_rate, parse_span
        from actorlm.remote.server import Server

        if vocab_size is not None and figures["prompts"] != "ids":
            raise ConfigError("--vocab-size goes with --prompts ids")
        traffic = Traffic(
            input_len=_parsed("--input-len", input_len, parse_span, "a number of tokens, or MIN-MAX"),
            output_len=_parsed("--output-len", output_len, parse_span, "a number of tokens, or MIN-MAX"),
            vocab_size=vocab_size or DEFAULT_VOCAB_SIZE,
            seed=secrets.randbelow(SEEDS) if seed is None else seed,
            request_rate=_parsed("--request-rate", request_rate, parse_rate, "above 0, or inf"),
            **figures,
        )
        check(traffic)
        files = Files(json_file, plot_file)
        files.check()
        server = Server(url, api_key=api_key or client_api_key(), timeout_s=timeout)
        ending = run_bench(server, url, traffic, model=model, warmup=warmup, files=files)
        return {"fine": 0, "failed": FAILED, "interrupted": INTERRUPTED}[ending]

    finish(run)


def _parsed(option: str, text: str, parse: Callable[[str], Any], what: str) -> Any:
    try:
        return parse(text)
    except ValueError:
        raise ConfigError(f"{option} is {text!r}; it must be {what}") from None


@click.command()
@click.option(
    "--url",
    metavar="URL",
    help="a server like http://127.0.0.1:8000, or a run directory as `actorlm ps` shows it [the one running tree]",
)
@click.option("--model", metavar="NAME", help="name to ask for [the one that is served]")
@_api_key
@click.option("--system", metavar="TEXT", help="system prompt")
@click.option("--max-tokens", type=click.IntRange(min=1), help="of an answer [all the room there is]")
@click.option("--temperature", type=click.FloatRange(0, 2), help="0 is greedy [the server's]")
@click.option(
    "--top-p", type=click.FloatRange(0, 1, min_open=True), help="of the probability, the likeliest tokens that have it"
)
@click.option("--top-k", type=click.IntRange(min=0), help="likeliest tokens to choose from; 0 is all")
@click.option("--min-p", type=click.FloatRange(0, 1), help="least probability, as a share of the likeliest token's")
@click.option("--presence-penalty", type=_penalty, help="against tokens that the answer has already")
@click.option("--frequency-penalty", type=_penalty, help="the same, for each time that it has them")
@click.option(
    "--repetition-penalty",
    type=click.FloatRange(MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
    help="divides the chances of all tokens so far, the questions' too; 1 is none",
)
@click.option("--seed", type=click.IntRange(MIN_SEED, MAX_SEED), help="makes answers repeatable")
@click.option("--stop", multiple=True, metavar="TEXT", help="ends an answer; may be given several times")
def chat(url: str | None, api_key: str | None, model: str | None, system: str | None, **sampling: Any) -> None:
    """Talk with a model at the terminal; with input from a pipe, answer line by line.

    /reset forgets the conversation, /exit and Ctrl-D leave, Ctrl-C stops an answer.
    """

    def run() -> int:
        from actorlm.chat.background import Background
        from actorlm.chat.conversation import Conversation
        from actorlm.chat.source import source_at
        from actorlm.chat.talk import Talk
        from actorlm.chat.terminal import Terminal

        source = source_at(url, model=model, api_key=api_key, default_key=client_api_key())
        fields = {name: value for name, value in sampling.items() if value not in (None, ())}
        with Background() as background:
            return 0 if Talk(Conversation(system), source, fields, Terminal(), background).run() else FAILED

    finish(run)
