"""Prompts of a given number of tokens: random ids, or text of common words for servers and routes that take no ids."""

import random
from collections.abc import Sequence

import msgspec

_COMMON = (
    "able army away baby back ball band bank base bear beat best bill bird blue boat body book born both call "
    "came card care case cell city club come cost dark date dead deal dear door down draw east easy even ever "
    "face fact fair fall farm fast feel feet fine fire fish five food foot form four free full game girl give "
    "glad gold good gray grew grow hair half hall hand hard head hear heat help high hill hold home hope hour "
    "idea iron jump keep kept kind king knew lake land last late lead left life line list live long look lost "
    "love main make mark mean meet mile milk mind moon more most move name near need news next nine note once "
    "only open over page pair part past path plan play poor race rain read real rest rich ring road rock room "
    "rose rule safe said salt same sand save seat seem sell send ship shop show sick side sign sing size skin "
    "snow soft soil song soon star stay step stop such sure take talk tall team tell test than them then time "
    "told tone took town tree true turn type unit very view wait walk wall want warm wash wave week well went "
    "west what when wide wife wild wind wing wish wood word work yard year your zero"
)
WORDS = tuple(_COMMON.split())
"""Of four letters each: mostly one token where vocabularies are large, and always as many where tokens are bytes."""


class Scale(msgspec.Struct, frozen=True):
    """How a server counts text: `fixed` tokens around every prompt, and `per_word`."""

    fixed: float = 0.0
    per_word: float = 1.0

    def words(self, tokens: int) -> int:
        """The number of words that makes this many tokens, or nearly; at least one."""
        return max(1, round((tokens - self.fixed) / self.per_word))


SAMPLES = (16, 48)
"""Words of the two texts that a scale is taken from."""


def scale(counted: Sequence[int]) -> Scale | None:
    """From what a server counted for texts of SAMPLES words; None if that makes no sense."""
    per_word = (counted[1] - counted[0]) / (SAMPLES[1] - SAMPLES[0])
    fixed = counted[0] - per_word * SAMPLES[0]
    return Scale(fixed, per_word) if per_word > 0 else None


def text(words: int, source: random.Random) -> str:
    """Random words."""
    return " ".join(source.choices(WORDS, k=words))


class Texts:
    """Makes prompts of text. All of them begin with the same `shared_prefix` tokens, or nearly."""

    def __init__(self, scale: Scale, shared_prefix: int, source: random.Random) -> None:
        self._scale = scale
        self._source = source
        self._shared = scale.words(shared_prefix) if shared_prefix else 0
        self._prefix = f"{text(self._shared, source)} " if self._shared else ""

    def make(self, tokens: int) -> str:
        """One prompt."""
        return self._prefix + text(max(1, self._scale.words(tokens) - self._shared), self._source)


class Ids:
    """Makes prompts of token ids below `vocab_size`. All of them begin with the same `shared_prefix` ids."""

    def __init__(self, vocab_size: int, shared_prefix: int, source: random.Random) -> None:
        self._vocab_size = vocab_size
        self._source = source
        self._prefix = self._ids(shared_prefix)

    def make(self, tokens: int) -> list[int]:
        """One prompt."""
        return self._prefix + self._ids(tokens - len(self._prefix))

    def _ids(self, count: int) -> list[int]:
        return [self._source.randrange(self._vocab_size) for _ in range(count)]
