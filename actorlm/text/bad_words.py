"""Bad words as token sequences: as vLLM has it, each at the beginning of a text and after a space.

The spelling after a space counts only if it begins with another token and has as many of them: one that is longer would
ban the word behind a token that is a space alone, and that is the first spelling again.
"""

from collections.abc import Sequence

from actorlm.errors import BadRequest


def spellings(words: Sequence[str]) -> list[str]:
    """Two texts a word, to be encoded without special tokens. Raises BadRequest for a word without characters."""
    for word in words:
        if not word.strip():
            raise BadRequest(f"bad_words has {word!r}, which has no characters to look for", param="bad_words")
    return [prefix + word.lstrip() for word in words for prefix in ("", " ")]


def sequences(encoded: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The token sequences to ban, from the ids of `spellings`. Raises BadRequest for a word without tokens."""
    found: list[tuple[int, ...]] = []
    for plain, spaced in zip(encoded[::2], encoded[1::2], strict=True):
        if not plain:
            raise BadRequest("bad_words has a word that this model's tokenizer has no tokens for", param="bad_words")
        found.append(tuple(plain))
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            found.append(tuple(spaced))
    return tuple(dict.fromkeys(found))
