"""The Jinja environment of chat templates: that of transformers (utils/chat_template_utils.py) in its semantics.

transformers itself is not imported: it would cost every frontend 1.6 s. Sandboxed and immutable; blocks are trimmed;
`raise_exception`, `strftime_now`, `tojson` without HTML escapes, `{% break %}`, `{% generation %}`.
"""

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils


def template_environment(now: Callable[[], datetime]) -> jinja2.Environment:
    """A new environment. `now` is the local time that `strftime_now` formats."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: now().strftime(form),
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


class _Dict:
    """`dict` without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _Namespace(jinja2.utils.Namespace):
    """`namespace` whose attributes cannot begin with an underscore, which would lead to Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that `namespace(self=1)` works
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot have the attribute {name!r}, which begins with _")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
