"""The text of one request: token ids in, pieces of text out, ended by a stop string if one is found.

Text is delivered at once, except an incomplete character and what may become the beginning of a stop string. A stream
that is made anew with the ids generated so far continues exactly as the undisturbed one.
"""

from collections.abc import Sequence

import msgspec

from actorlm.errors import ProtocolError
from actorlm.messages.frontend import Finish
from actorlm.text.incremental import incremental
from actorlm.text.stop_strings import StopStrings
from actorlm.text.tokenizer import Tokenizer

CONTEXT_LENGTH = 16
"""How many of the prompt's last ids suffice as `context_ids`."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Text that can be delivered now; how many of the pushed ids count; why the request ended, if it did.

    Ids after the one that completed a stop string do not count. `stop` is that string.
    """

    text: str
    count: int
    finish: Finish
    stop: str | None = None


class TextStream:
    """The state of one request.

    `context_ids` end the prompt. `generated_ids` were pushed to an earlier stream, which delivered
    `delivered_characters` of text. `include_stop` delivers the stop string, or the stop token, that ends the request.
    Raises ProtocolError if no stream could have delivered so much, or would have gone on.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        context_ids: Sequence[int],
        generated_ids: Sequence[int] = (),
        delivered_characters: int = 0,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._decoder = incremental(
            tokenizer,
            context_ids=context_ids,
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
        )
        self._stops = StopStrings(tuple(stop), include=include_stop) if stop else None
        self._include_stop = include_stop
        self._finished = False
        self._owed = ""
        if len(generated_ids):
            self._owed = self._replay(generated_ids, delivered_characters)

    def push(self, ids: Sequence[int], finish: Finish) -> Piece:
        """Takes the ids of one step, and why the engine ended the request, if it did. Not to be called after that."""
        assert not self._finished, "push after the end"
        rendered = ids[:-1] if finish is Finish.STOP and not self._include_stop else ids
        piece = (
            self._push(rendered, len(ids), finish) if self._stops is None else self._scan(rendered, len(ids), finish)
        )
        self._finished = piece.finish is not Finish.NOT_YET
        if self._owed:
            piece, self._owed = msgspec.structs.replace(piece, text=self._owed + piece.text), ""
        return piece

    def _push(self, ids: Sequence[int], count: int, finish: Finish) -> Piece:
        text = self._decoder.push(ids)
        if finish is not Finish.NOT_YET:
            text += self._decoder.flush()
        return Piece(text, count, finish)

    def _scan(self, ids: Sequence[int], count: int, finish: Finish) -> Piece:
        """Like _push, id by id, so that the one that completes a stop string is known."""
        assert self._stops is not None
        text = ""
        for position, token_id in enumerate(ids, 1):
            scan = self._stops.scan(self._decoder.push((token_id,)))
            text += scan.text
            if scan.found:
                return Piece(text, position, Finish.STOP_STRING, scan.stop)
        if finish is Finish.NOT_YET:
            return Piece(text, count, finish)
        scan = self._stops.scan(self._decoder.flush())
        text += scan.text + self._stops.flush()
        return Piece(text, count, Finish.STOP_STRING if scan.found else finish, scan.stop)

    def _replay(self, generated_ids: Sequence[int], delivered_characters: int) -> str:
        """Brings the state up to these ids; returns text that they complete and that was not delivered."""
        piece = self.push(generated_ids, Finish.NOT_YET)
        if piece.finish is not Finish.NOT_YET or delivered_characters > len(piece.text):
            raise ProtocolError(
                f"a stream cannot resume after {len(generated_ids)} tokens and {delivered_characters} characters: "
                f"the tokens make {len(piece.text)} characters and {piece.finish.name}"
            )
        return piece.text[delivered_characters:]
