"""Logs: one line an event on standard error, with the actor's name and whatever is bound.

Two formats: `console` for people, `json` for machines, where every line is one JSON object, whoever writes it: the
loggers of the standard library and its warnings, exceptions that nobody caught, and what a library prints.
"""

import contextlib
import io
import logging
import os
import socket
import sys
import threading
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import msgspec
import structlog
from structlog.typing import EventDict, Processor

from actorlm.config import LogFormat

MAX_PRINTED = 65_536
"""Characters of a printed line, after which it is logged although it has not ended."""

log = structlog.get_logger(__name__)


class StandardError:
    """Standard error, whose reader may leave: what nobody reads is not worth an actor's life."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Writes what can be written."""
        with contextlib.suppress(OSError):
            (self._stream or sys.stderr).write(text)

    def flush(self) -> None:
        """Flushes what can be flushed."""
        with contextlib.suppress(OSError):
            (self._stream or sys.stderr).flush()


def configure_logging(level: str, actor: str, log_format: LogFormat = "console") -> None:
    """Sets up structlog, and the standard library's loggers of others, for this process."""
    least = logging.getLevelNamesMapping()[level.upper()]
    stream = StandardError(sys.stderr if log_format == "json" else None)
    common, last = _processors(actor, log_format)
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, structlog.processors.add_log_level, *common, *last],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", stream)),
        cache_logger_on_first_use=True,
    )
    _take_over_standard_loggers(max(least, logging.WARNING), stream, common, last)
    _take_over_exceptions()
    if log_format == "json":
        sys.stdout, sys.stderr = cast("TextIO", Printed("stdout")), cast("TextIO", Printed("stderr"))


def _processors(actor: str, log_format: LogFormat) -> tuple[list[Processor], list[Processor]]:
    """What every line gets, whoever wrote it; and how it becomes text. Threads have no context variables of ours."""
    if log_format == "console":
        timestamp = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
        console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
        return [_bound(actor=actor), timestamp, structlog.processors.format_exc_info], [console]
    bound = _bound(actor=actor, host=socket.gethostname(), pid=os.getpid())
    timestamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    return [bound, timestamp, structlog.processors.format_exc_info], [as_json]


def _bound(**fields: str | int) -> Processor:
    def bind(_logger: Any, _method: str, event: EventDict) -> EventDict:
        return {**fields, **event}

    return bind


def as_json(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    """The last processor: an event as one line of JSON. What JSON cannot say is told by its `repr`."""
    line = {"timestamp": event.pop("timestamp"), "level": event.pop("level"), "event": event.pop("event"), **event}
    try:
        return msgspec.json.encode(line, enc_hook=repr).decode()
    except (TypeError, ValueError, RecursionError):  # a lone surrogate, a key that is no text
        spelled = {str(key): _printable(value) for key, value in line.items()}
        return msgspec.json.encode(spelled).decode()


def _printable(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text.encode(errors="backslashreplace").decode()


class _Handler(logging.StreamHandler[TextIO]):
    """A line that its writer formats wrongly is a line that says so, not a traceback on standard error."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """See `logging.Handler`."""
        log.warning("a log line could not be formatted", logger=record.name, message=repr(record.msg))


def _take_over_standard_loggers(
    least: int, stream: StandardError, common: list[Processor], last: list[Processor]
) -> None:
    """Lines and warnings of libraries look like ours, and say which logger they are from."""
    foreign = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        *common,
    ]
    handler = _Handler(cast("TextIO", stream))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=foreign,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(least)
    logging.captureWarnings(capture=True)


def _take_over_exceptions() -> None:
    def uncaught(kind: type[BaseException], error: BaseException | None, traceback: Any) -> None:
        if not issubclass(kind, KeyboardInterrupt | SystemExit):
            log.critical("uncaught exception", exc_info=(kind, error, traceback))

    def uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
        uncaught(args.exc_type, args.exc_value, args.exc_traceback)

    sys.excepthook = uncaught
    threading.excepthook = uncaught_in_thread


class Printed(io.TextIOBase):
    """Stands for standard output or error: each line that is printed is logged."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._begun = ""

    def write(self, text: str) -> int:
        """Logs the lines that end with this; a carriage return ends one, too."""
        *lines, self._begun = (self._begun + text).replace("\r", "\n").split("\n")
        if len(self._begun) > MAX_PRINTED:
            lines, self._begun = [*lines, self._begun], ""
        for line in filter(str.strip, lines):
            log.info(line, stream=self._name)
        return len(text)

    def flush(self) -> None:
        """A line that has not ended waits for its end."""

    def isatty(self) -> bool:
        """Nobody sees colours here."""
        return False
