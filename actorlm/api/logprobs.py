"""Log-probabilities in OpenAI's two formats, from the entries that come with deltas.

A token whose bytes are no whole characters is shown as their escapes, as OpenAI does; its exact bytes are in chat's
`bytes`. `text_offset` is the character of the choice's text, echo included, at which a token begins: one that goes on
with a character that is incomplete begins where the character does, and one that is left out of the text is empty.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from actorlm.api.ports import Backend
from actorlm.api.schema_chat import ChatLogprobs, ChatTokenLogprob, TopLogprob
from actorlm.api.schema_completions import CompletionLogprobs
from actorlm.logprobs import Entry, Scores
from actorlm.text.incremental import utf_8_characters


class Vocabulary(NamedTuple):
    """The bytes of each token: as it is, and as it stands in text, where special tokens may be left out."""

    plain: Callable[[int], bytes]
    in_text: Callable[[int], bytes]


def vocabulary(backend: Backend, *, skip_special_tokens: bool) -> Vocabulary:
    """The model's, for an answer that leaves special tokens out of its text or not."""
    plain = partial(backend.token_bytes, skip_special_tokens=False)
    return Vocabulary(plain, partial(backend.token_bytes, skip_special_tokens=skip_special_tokens))


def _escaped(data: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in data)


class ChatFormat:
    """`choices[].logprobs` of chat."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def of(self, scores: Scores) -> ChatLogprobs:
        """What the new tokens of a choice come to."""
        return ChatLogprobs([self._token(entry) for entry in scores.output], None)

    def _token(self, entry: Entry) -> ChatTokenLogprob:
        one, *others = [self._candidate(*candidate) for candidate in ((entry.token, entry.logprob), *entry.others)]
        return ChatTokenLogprob(one.token, one.logprob, one.bytes, others)

    def _candidate(self, token: int, logprob: float) -> TopLogprob:
        data = self._vocabulary.plain(token)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = _escaped(data)
        return TopLogprob(text, logprob, list(data))


class CompletionFormat:
    """`choices[].logprobs` of text completions.

    `firsts[i]` is the first token of choice i's prompt; there are none where prompts are not scored.
    """

    def __init__(self, vocabulary: Vocabulary, choices: int, firsts: Sequence[int] = ()) -> None:
        self._vocabulary = vocabulary
        self._firsts = firsts
        self._offsets = [0] * choices
        self._incomplete = [b""] * choices

    def opening(self, choice: int) -> CompletionLogprobs | None:
        """The prompt's first token, of which nothing is known; None if the prompt is not scored."""
        if not self._firsts:
            return None
        token = self._firsts[choice]
        return CompletionLogprobs([self._offset(choice, token)], [None], [self._text(token)], [None])

    def of(self, choice: int, scores: Scores) -> CompletionLogprobs:
        """What is new of a choice: tokens of its prompt, then generated ones."""
        made = CompletionLogprobs([], [], [], [])
        self._add(made, choice, scores.prompt)
        self._add(made, choice, scores.output)
        return made

    def _add(self, made: CompletionLogprobs, choice: int, entries: Iterable[Entry]) -> None:
        for entry in entries:
            made.text_offset.append(self._offset(choice, entry.token))
            made.token_logprobs.append(entry.logprob)
            made.tokens.append(self._text(entry.token))
            top = {made.tokens[-1]: entry.logprob}
            for token, logprob in entry.others:
                top.setdefault(self._text(token), logprob)
            made.top_logprobs.append(top)

    def _offset(self, choice: int, token: int) -> int:
        """Where the token begins; the next one begins behind it."""
        begin = self._offsets[choice]
        data = self._incomplete[choice] + self._vocabulary.in_text(token)
        characters, consumed = utf_8_characters(data)
        self._offsets[choice] += characters
        self._incomplete[choice] = data[consumed:]
        return begin

    def _text(self, token: int) -> str:
        data = self._vocabulary.plain(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + _escaped(data)
