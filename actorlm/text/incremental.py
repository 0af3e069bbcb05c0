"""Token ids to text, piece by piece: the pieces joined are byte for byte what decoding all ids at once gives.

Text is held back only while it is incomplete: some bytes of a character, or, where bytes are tokens of their own (byte
fallback), a run of them, because one bad byte in a run turns all of it into U+FFFD. `flush` gives the rest.

`tokenizers.decoders.DecodeStream` is not used: it has no flush, raises on such runs, gives out the prompt when that
ends inside a character, and decodes all that it holds anew at each token, which makes bytes that never form a character
quadratic.
"""

from codecs import utf_8_decode
from collections.abc import Iterable, Sequence
from typing import Protocol

from actorlm.text.tokenizer import Tokenizer, is_byte_token

REPLACEMENT = "\ufffd"


class Incremental(Protocol):
    """A decoder of one stream. It continues the text of its context ids and does not repeat it.

    A character that the context leaves incomplete belongs to the stream, if the tokens are byte-level.
    """

    def push(self, ids: Iterable[int]) -> str:
        """The text that these ids complete."""
        ...

    def flush(self) -> str:
        """The text of what was incomplete, when no more ids come."""
        ...


def utf_8_characters(data: bytes) -> tuple[int, int]:
    """How many characters the bytes complete, and how many bytes these take; bytes that form none count as U+FFFD."""
    text, consumed = utf_8_decode(data, "replace", False)
    return len(text), consumed


class ByteLevelStream:
    """Decodes byte-level tokens: their bytes follow each other, and an incomplete character waits."""

    def __init__(self, tokenizer: Tokenizer, *, context_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._token_bytes = tokenizer.token_bytes(skip_special_tokens=skip_special_tokens)
        self._incomplete = b""
        self.push(context_ids)

    def push(self, ids: Iterable[int]) -> str:
        """See Incremental."""
        data = self._incomplete + b"".join([self._token_bytes[i] for i in ids])
        text, consumed = utf_8_decode(data, "replace", False)
        self._incomplete = data[consumed:]
        return text

    def flush(self) -> str:
        """See Incremental."""
        data, self._incomplete = self._incomplete, b""
        return data.decode(errors="replace")


class WindowStream:
    """Decodes any other tokens: a window of ids whose beginning has been given out already.

    The window keeps the ids of the piece before, so that its decoding has what it depends on (a leading space is
    dropped at the beginning of a text alone). Each token costs two decodings of the window. Without spaces between
    special tokens, an added token behind another one is its own content, as vLLM has it, and not what the decoder makes
    of it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        context_ids: Sequence[int],
        skip_special_tokens: bool,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._unspaced = {} if spaces_between_special_tokens else tokenizer.added_tokens
        self._behind_added = False
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._given = [i for i in context_ids if i not in self._skipped]
        self._given_text = self._decode(self._given)
        self._new: list[int] = []

    def push(self, ids: Iterable[int]) -> str:
        """See Incremental."""
        return "".join([self._text(i) for i in ids if i not in self._skipped])

    def _text(self, token_id: int) -> str:
        text = self._push(token_id)
        content = self._unspaced.get(token_id)
        if content is not None and self._behind_added:
            text = content
        self._behind_added = content is not None
        return text

    def _push(self, token_id: int) -> str:
        token = self._tokenizer.backend.id_to_token(token_id)
        if token is None:
            return ""
        self._new.append(token_id)
        if self._tokenizer.has_byte_fallback:
            incomplete = is_byte_token(token)
        else:
            incomplete = self._decode(self._given + self._new).endswith(REPLACEMENT)
        return "" if incomplete else self.flush()

    def flush(self) -> str:
        """See Incremental."""
        text = self._decode(self._given + self._new)[len(self._given_text) :]
        if text:
            self._given, self._new = self._new, []
            self._given_text = self._decode(self._given)
        return text

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def incremental(
    tokenizer: Tokenizer,
    *,
    context_ids: Sequence[int],
    skip_special_tokens: bool,
    spaces_between_special_tokens: bool = True,
) -> Incremental:
    """The decoder for this tokenizer, after the text of `context_ids`. Byte-level ones put spaces between no tokens."""
    if tokenizer.is_byte_level:
        return ByteLevelStream(tokenizer, context_ids=context_ids, skip_special_tokens=skip_special_tokens)
    return WindowStream(
        tokenizer,
        context_ids=context_ids,
        skip_special_tokens=skip_special_tokens,
        spaces_between_special_tokens=spaces_between_special_tokens or skip_special_tokens,
    )
