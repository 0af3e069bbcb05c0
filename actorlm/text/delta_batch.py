"""Text deltas on their way to one frontend, one row a request.

What cannot be sent yet is merged with what comes after it, so that a frontend that is slow costs memory in proportion
to its open requests and loses nothing.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from actorlm.logprobs import Scores, joined, pack
from actorlm.messages.frontend import Finish, TextDelta
from actorlm.wire import int32, int64

MAX_SIZE = 1 << 20
"""Characters of text, and bytes of log-probabilities."""


@dataclass(slots=True)
class _Row:
    attempt: int
    cached: int
    finish: Finish = Finish.NOT_YET
    ids: "array[int]" = field(default_factory=lambda: array("i"))
    texts: list[str] = field(default_factory=list)
    scores: Scores | None = None
    size: int = 0

    def add_scores(self, scores: Scores) -> None:
        self.size += scores.size
        self.scores = joined(self.scores, scores)


class DeltaBatch:
    """The deltas that one frontend has not been sent."""

    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(
        self,
        request: int,
        attempt: int,
        ids: Sequence[int],
        text: str,
        finish: Finish,
        cached: int,
        scores: Scores | None = None,
    ) -> None:
        """Appends to the row of `request`, which keeps `scores`. A newer attempt replaces an older one's row."""
        row = self._rows.get(request)
        if row is None or row.attempt < attempt:
            row = self._rows[request] = _Row(attempt, cached)
        row.ids.extend(ids)
        row.texts.append(text)
        row.size += len(text)
        row.finish = finish
        if scores is not None:
            row.add_scores(scores)

    def drop(self, request: int) -> None:
        """Forgets a request that its frontend has closed."""
        self._rows.pop(request, None)

    def message(self) -> TextDelta:
        """The first rows, up to about `MAX_SIZE`, as one message; `sent` takes them out."""
        first = self._first()
        rows = first.values()
        return TextDelta(
            requests=int64(first),
            attempts=int32(row.attempt for row in rows),
            counts=int32(len(row.ids) for row in rows),
            tokens=b"".join(row.ids.tobytes() for row in rows),
            texts=tuple("".join(row.texts) for row in rows),
            finishes=bytes(row.finish for row in rows),
            cached=int32(row.cached for row in rows),
            logprobs=pack([row.scores for row in rows]),
        )

    def sent(self) -> None:
        """What `message` gave has left."""
        for request in list(self._first()):
            del self._rows[request]

    def _first(self) -> dict[int, _Row]:
        """As the rows are merged while they wait, a message of all of them could become too large to send."""
        if self._size <= MAX_SIZE:
            return self._rows
        first, size = {}, 0
        for request, row in self._rows.items():
            first[request] = row
            size += row.size
            if size > MAX_SIZE:
                break
        return first

    @property
    def _size(self) -> int:
        return sum(row.size for row in self._rows.values())
