"""A streamed completion: bytes in, chunks out, and whether it came to its end."""

from actorlm.remote.chunk import DONE, Chunk, decode
from actorlm.remote.failure import Failure
from actorlm.remote.sse import Events


class Chunks:
    """Feed it a body as it comes in, and say when that has ended. Both raise Failure."""

    def __init__(self) -> None:
        self._events = Events()
        self._complete = False

    def feed(self, data: bytes) -> list[Chunk]:
        """The chunks that these bytes complete."""
        return [self._decode(event) for event in self._events.feed(data) if not self._is_done(event)]

    def end(self) -> list[Chunk]:
        """What is left; a stream without `[DONE]` and without a finish_reason was cut off."""
        left = [self._decode(event) for event in self._events.end() if not self._is_done(event)]
        if not self._complete:
            raise Failure("cut off", "the stream ended without finish_reason or [DONE]")
        return left

    def _is_done(self, event: bytes) -> bool:
        done = event == DONE
        self._complete = self._complete or done
        return done

    def _decode(self, event: bytes) -> Chunk:
        chunk = decode(event)
        for choice in chunk.choices:
            if choice.finish_reason is not None:
                self._complete = True
        return chunk
