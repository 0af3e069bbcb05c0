"""Writes the reference pages that follow from the code: options, request fields, metrics.

Run it after a change of these; a test fails while the pages are stale.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from actorlm.api.fields import CHAT, COMPLETION, Field
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


def _fields() -> Iterator[str]:
    yield "# Request fields"
    yield ""
    yield "Every field of OpenAI's reference, and what we take beyond it (marked extra). A field that is not here is"
    yield "refused by name. A field that is refused, or accepted at its neutral value alone, is accepted as null."
    for path, table in (("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)):
        yield from ("", f"## {path}", "")
        yield from _table("field", "treatment", "note")
        yield from _field_rows(table.items())


def _field_rows(items: Iterable[tuple[str, Field]]) -> Iterator[str]:
    for name, field in items:
        yield _row(f"`{name}`", field.treatment, field.note)


def _metrics() -> Iterator[str]:
    yield "# Metrics"
    yield ""
    yield "`GET /metrics` collects these from all actors of the tree, whichever frontend answers. Each has the label"
    yield "`model_name`; counters of several frontends are added up."
    yield ""
    yield from _table("metric", "kind", "labels", "meaning")
    for name, metric in METRICS.items():
        suffix = "_total" if metric.kind == "counter" else ""
        yield _row(f"`{PREFIX}{name}{suffix}`", metric.kind, ", ".join(metric.labels), metric.help)


_PAGES = {"options.md": _options, "fields.md": _fields, "metrics.md": _metrics}


if __name__ == "__main__":
    for name, text in pages().items():
        Path(__file__).with_name(name).write_text(text)
