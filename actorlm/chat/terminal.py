"""Reads lines and shows answers: with prompts and hints at a terminal, bare where input comes from elsewhere."""

import contextlib
import io
import sys
from typing import TextIO

PROMPT = "> "

_INVISIBLE: dict[int, str | None] = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)]) | {
    ord(kept): kept for kept in "\n\t"
}
"""Control characters: at a terminal they would act, so what a model says is shown without them."""


class Terminal:
    """`interactive` says whether somebody types."""

    def __init__(self, source: TextIO = sys.stdin, target: TextIO = sys.stdout, hints: TextIO = sys.stderr) -> None:
        self._source = source
        self._target = target
        self._hints = hints
        self._drawn = target.isatty()
        self.interactive = source.isatty()
        for stream in (source, target):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # rather than to end over one byte
        if self.interactive:
            with contextlib.suppress(ImportError):  # lines can be edited where Python has it
                import readline  # noqa: F401, PLC0415 - acts when imported

    def read(self) -> str | None:
        """The next line; None at the end. Ctrl-C gives the line up, and is an empty one."""
        if not self.interactive:
            line = self._source.readline()
            return line.rstrip("\r\n") if line else None
        try:
            return input(PROMPT if self._drawn else "")
        except EOFError:
            self.hint("")
            return None
        except KeyboardInterrupt:
            self.hint("")
            return ""

    def show(self, text: str) -> None:
        """A piece of an answer."""
        self._target.write(text.translate(_INVISIBLE) if self._drawn else text)
        self._target.flush()

    def hint(self, text: str) -> None:
        """A line about the conversation, apart from it."""
        print(text, file=self._hints, flush=True)
