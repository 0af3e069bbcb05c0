"""Writes the reference pages that follow from the code: options, request fields, metrics, errors.

Run it after a change of these; a test fails while the pages are stale.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import actorlm.api.errors
import actorlm.errors
from actorlm.api.envelope import PARAMETERS
from actorlm.api.fields import CHAT, COMPLETION, DETOKENIZE, TOKENIZE, Field
from actorlm.errors import ActorlmError
from actorlm.metrics import METRICS, PREFIX
from actorlm.options import OPTIONS, Option


def pages() -> dict[str, str]:
    """Every page by its file name."""
    return {name: "\n".join(lines()) + "\n" for name, lines in _PAGES.items()}


def _table(*columns: str) -> Iterator[str]:
    yield "| " + " | ".join(columns) + " |"
    yield "|" + " --- |" * len(columns)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _options() -> Iterator[str]:
    yield "# Options"
    yield ""
    yield "A flag beats the environment, which beats the TOML file. `actorlm up file.toml` reads the file."
    for group in dict.fromkeys(option.group for option in OPTIONS):
        yield from ("", f"## {group}", "")
        yield from _table("flag", "TOML key", "environment", "default", "what it does")
        for option in OPTIONS:
            if option.group == group:
                yield _row(
                    f"`{option.flag}`", f"`{option.key}`", f"`{option.variable}`", _default(option), _meaning(option)
                )


def _default(option: Option) -> str:
    return "" if option.default is None else f"`{option.default}`"


def _meaning(option: Option) -> str:
    unit = f", in {option.unit}" if option.unit else ""
    choices = f"; one of {', '.join(option.choices)}" if option.choices else ""
    return f"{option.help}{unit}{choices}"


_ROUTES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
}


def _fields() -> Iterator[str]:
    yield "# Request fields"
    yield ""
    yield "Every field of OpenAI's reference, and what we take beyond it (marked extra). A field that is not here is"
    yield "refused by name. A field that is refused, or accepted at its neutral value alone, is accepted as null."
    for path, table in _ROUTES.items():
        yield from ("", f"## {path}", "")
        yield from _table("field", "treatment", "note")
        yield from _field_rows(table.items())
    yield from ("", "## Headers", "", "Of the generating routes. A value that makes no sense is refused.", "")
    yield from _table("header", "note")
    for parameter in PARAMETERS:
        yield _row(f"`{parameter.name}`", parameter.description or "")


def _field_rows(items: Iterable[tuple[str, Field]]) -> Iterator[str]:
    for name, field in items:
        yield _row(f"`{name}`", field.treatment, field.note)


def _metrics() -> Iterator[str]:
    yield "# Metrics"
    yield ""
    yield "`GET /metrics` collects these from all actors of the tree, whichever frontend answers. Each has the label"
    yield "`model_name`; `engine` is a replica's number. Counters and histograms of several frontends are added up."
    yield "[observability.md](observability.md#metrics) compares them with vLLM's."
    yield ""
    yield from _table("metric", "kind", "labels", "meaning")
    for name, metric in METRICS.items():
        suffix = "_total" if metric.kind == "counter" else ""
        yield _row(f"`{PREFIX}{name}{suffix}`", metric.kind, ", ".join(metric.labels), metric.help)


_ANSWERS = """# Errors

Everything that goes wrong on purpose is an `ActorlmError`. Its message names the field or option, the value and the
way out.

## Answers

Over HTTP an error is `{"error": {"message", "type", "param", "code"}}`. `param` names the field that is at fault, where
one is. A stream that has begun cannot change its status any more: the same object comes as an event, and then
`[DONE]`. Answers with a number of seconds have the header `Retry-After`. A model that is not served has the code
`model_not_found`. Classes of HTTP alone are in `actorlm.api.errors`, all others in `actorlm.errors`."""

_FAULTS = """
## Faults

No request is answered with these. They end the command, process or call in which they occur, and requests that a lost
process worked on end as `Interrupted`. `actorlm` says the message in one line and exits with the status."""


def _errors() -> Iterator[str]:
    yield from _ANSWERS.splitlines()
    yield ""
    yield from _table("status", "class", "type", "code", "retry after", "when")
    answered = [kind for kind in _classes(actorlm.errors, actorlm.api.errors) if _is_answer(kind)]
    for kind in sorted(answered, key=lambda kind: kind.status):
        yield _row(
            f"{kind.status}", f"`{kind.__name__}`", f"`{kind.type}`", _code(kind.code), _seconds(kind), _when(kind)
        )
    yield from _FAULTS.splitlines()
    yield ""
    yield from _table("exit status", "class", "when")
    for kind in _classes(actorlm.errors):
        if kind is not ActorlmError and not _is_answer(kind):
            yield _row(f"{getattr(kind, 'exit_status', 1)}", f"`{kind.__name__}`", _when(kind))


def _classes(*modules: ModuleType) -> list[type[ActorlmError]]:
    """The errors that these modules define, in their order."""
    return [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, ActorlmError) and kind.__module__ == module.__name__
    ]


def _is_answer(kind: type[ActorlmError]) -> bool:
    """Whether a class below the root says what to answer."""
    return any({"status", "code"} & vars(base).keys() for base in kind.__mro__ if base not in ActorlmError.__mro__)


def _code(code: str | None) -> str:
    return "" if code is None else f"`{code}`"


def _seconds(kind: type[ActorlmError]) -> str:
    seconds = getattr(kind, "retry_after", None)
    return "" if seconds is None else f"{seconds} s"


def _when(kind: type[ActorlmError]) -> str:
    """The docstring in one line."""
    return " ".join((kind.__doc__ or "").split())


_PAGES = {"options.md": _options, "fields.md": _fields, "metrics.md": _metrics, "errors.md": _errors}


if __name__ == "__main__":
    for name, text in pages().items():
        Path(__file__).with_name(name).write_text(text)
