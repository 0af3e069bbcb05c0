"""Prompts of real text: windows of the project's own documents, each of so many tokens, none of them given twice."""

import random
from pathlib import Path

from actorlm.text.gguf_tokenizer import gguf_backend
from peers.table import Work

DOCUMENTS = Path(__file__).parents[2] / "docs"


class Prompts:
    """Each window begins at a word of its own, so that no prefix cache knows it. Tokens are those of a GGUF file."""

    def __init__(self, model: Path, source: random.Random) -> None:
        text = " ".join(path.read_text(encoding="utf-8") for path in sorted(DOCUMENTS.rglob("*.md")))
        self._words = text.encode("ascii", "ignore").decode().split()
        self._backend = gguf_backend(model)
        self._longest = 2 * 1024
        self._starts = list(range(len(self._words) - self._longest))
        source.shuffle(self._starts)

    def make(self, work: Work) -> list[str]:
        """Of one round. All begin with the same window if the work has a shared prefix."""
        shared = self._window(work.shared) if work.shared else ""
        rest = work.input_len - work.shared
        return [shared + self._window(rest) for _ in range(work.requests)]

    def _window(self, tokens: int) -> str:
        """Begins with a space, so that it can follow another. Raises IndexError when all windows are used up."""
        start = self._starts.pop()
        text = " " + " ".join(self._words[start : start + tokens])
        ids = self._backend.encode(text).ids[:tokens]
        return self._backend.decode(ids)
