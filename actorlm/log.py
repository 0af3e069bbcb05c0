"""Logs: one line an event on standard error, with the actor's name and whatever is bound."""

import contextlib
import logging
import sys
from typing import TextIO, cast

import structlog


class StandardError:
    """Standard error, whose reader may leave: what nobody reads is not worth an actor's life."""

    def write(self, text: str) -> None:
        """Writes what can be written."""
        with contextlib.suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Flushes what can be flushed."""
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def configure_logging(level: str, actor: str) -> None:
    """Sets up structlog, and the standard library's loggers of others, for this process."""
    least = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, StandardError())),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(actor=actor)
    logging.basicConfig(level=max(least, logging.WARNING), stream=sys.stderr, format=f"%(message)s actor={actor}")
