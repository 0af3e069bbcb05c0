"""Finds stop strings in text that arrives in pieces, and holds back only what may become the beginning of one.

The match that is complete first wins, and of those complete at the same character the longest: what is found does not
depend on how the text is cut into pieces.
"""

import re
from typing import NamedTuple


class Scan(NamedTuple):
    """Text that can be delivered now, whether a stop string ended it, and which one."""

    text: str
    found: bool
    stop: str | None = None


class StopStrings:
    """The state of one stream. `include` delivers the stop string itself too."""

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        assert all(stops), "an empty stop string"
        self._stops = stops
        self._include = include
        self._held = ""
        self._first_character = re.compile("|".join(re.escape(stop[0]) for stop in stops))

    def scan(self, text: str) -> Scan:
        """Takes the next piece of text. Not to be called after a stop string was found."""
        text = self._held + text
        if not self._first_character.search(text):
            self._held = ""
            return Scan(text, found=False)
        match = self._first_match(text)
        if match is not None:
            begin, end = match
            self._held = ""
            return Scan(text[: end if self._include else begin], found=True, stop=text[begin:end])
        deliverable = len(text) - max(_overlap(text, stop) for stop in self._stops)
        self._held = text[deliverable:]
        return Scan(text[:deliverable], found=False)

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, int] | None:
        matches = [(begin, begin + len(stop)) for stop in self._stops if (begin := text.find(stop)) >= 0]
        return min(matches, key=lambda match: (match[1], match[0]), default=None)


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`."""
    begin = max(len(text) - len(stop) + 1, 0)
    while (begin := text.find(stop[0], begin)) >= 0:
        if stop.startswith(text[begin:]):
            return len(text) - begin
        begin += 1
    return 0
