"""Bad words of one request: token sequences that its output must not contain. Pure Python: both runners use it.

As vLLM has it, the last token of a word is banned where the tokens before it stand at the end of the output. The prompt
does not count.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence


class BadWords:
    """The words, and as much of the output as the longest of them can begin with."""

    def __init__(self, words: Iterable[Sequence[int]], generated_ids: Iterable[int]) -> None:
        self._always: list[int] = []
        self._after: defaultdict[int, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
        longest = 0
        for *beginning, last in words:
            longest = max(longest, len(beginning))
            if beginning:
                self._after[beginning[-1]].append((tuple(beginning), last))
            else:
                self._always.append(last)
        self._end: deque[int] = deque(generated_ids, longest)

    def banned(self) -> list[int]:
        """The tokens that may not come next."""
        endings = self._after.get(self._end[-1], ()) if self._end else ()
        if not endings:
            return self._always
        end = tuple(self._end)
        return self._always + [last for beginning, last in endings if end[-len(beginning) :] == beginning]

    def append(self, token: int) -> None:
        """The output grows by a token."""
        self._end.append(token)
