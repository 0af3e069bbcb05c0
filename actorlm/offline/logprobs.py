"""Log-probabilities in the shape that vLLM's users know: in each place, a dict from token id to what is known of it."""

from collections.abc import Iterable

import msgspec

from actorlm.logprobs import Entries, Entry
from actorlm.text.tokenizer import Tokenizer


class Logprob(msgspec.Struct, frozen=True):
    """One candidate. `rank` counts the tokens that are at least as probable; None where it is not known."""

    logprob: float
    rank: int | None
    decoded_token: str


Place = dict[int, Logprob]
"""The token that is there, then the most probable ones, best first, then those that were asked for by id."""


def places(entries: Entries, top: int, tokenizer: Tokenizer) -> list[Place]:
    """The places of entries that list `top` most probable tokens each."""
    return [_place(entry, top, tokenizer) for entry in entries]


def _place(entry: Entry, top: int, tokenizer: Tokenizer) -> Place:
    place: Place = {}
    for token, logprob, rank in _candidates(entry, top):
        if token not in place:
            text = tokenizer.bytes_of(token, skip_special_tokens=False).decode(errors="replace")
            place[token] = Logprob(logprob, rank, text)
    return place


def _candidates(entry: Entry, top: int) -> Iterable[tuple[int, float, int | None]]:
    yield entry.token, entry.logprob, entry.rank
    for number, (token, logprob) in enumerate(entry.others, 1):
        yield token, logprob, number if number <= top else None


def total(entries: Entries) -> float:
    """The log-probability of all that the entries are about, together."""
    return sum(entry.logprob for entry in entries)
