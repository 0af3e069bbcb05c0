"""What is measured of one stream: the times of its events, taken as their bytes arrive, and what its usage says."""

from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from actorlm.remote.chunk import Chunk
from actorlm.remote.chunks import Chunks
from actorlm.remote.failure import Failure

Clock = Callable[[], float]


class Outcome(msgspec.Struct, frozen=True):
    """One request. `times` are those of the events with something in them, in seconds of one clock, as the rest is.

    `failure` is its kind, None unless it failed; `whole` is False also where it was interrupted. Without usage from the
    server an event is counted as a token and `counted` is False.
    """

    began: float
    ended: float
    times: Sequence[float]
    whole: bool
    failure: str | None
    message: str | None
    prompt_tokens: int
    output_tokens: int
    counted: bool

    @property
    def first(self) -> float | None:
        """Seconds to the first event."""
        return self.times[0] - self.began if self.times else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between each event and the next."""
        return [after - before for before, after in pairwise(self.times)]

    @property
    def per_token(self) -> float | None:
        """Seconds for each token after the first event."""
        if self.output_tokens < 2 or len(self.times) < 2:
            return None
        return (self.times[-1] - self.times[0]) / (self.output_tokens - 1)


class Recording:
    """One stream while it is under way."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._chunks = Chunks()
        self._began = clock()
        self._times = array("d")
        self._usage = (0, 0)

    def receive(self, data: bytes) -> None:
        """Bytes of the body. Raises Failure for what is no stream of a completion."""
        now = self._clock()
        for chunk in self._chunks.feed(data):
            self._take(chunk, now)

    def complete(self) -> Outcome:
        """The response has ended. Raises Failure if the completion had not."""
        for chunk in self._chunks.end():
            self._take(chunk, self._clock())
        return self._outcome(whole=True)

    def failed(self, failure: Failure) -> Outcome:
        """The request failed."""
        return self._outcome(failure=failure)

    def interrupted(self) -> Outcome:
        """We ended it."""
        return self._outcome()

    def _take(self, chunk: Chunk, now: float) -> None:
        if any(choice.says for choice in chunk.choices):
            self._times.append(now)
        if chunk.usage is not None:
            self._usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)

    def _outcome(self, *, whole: bool = False, failure: Failure | None = None) -> Outcome:
        prompt, output = self._usage
        return Outcome(
            began=self._began,
            ended=self._clock(),
            times=self._times,
            whole=whole,
            failure=failure.kind if failure else None,
            message=failure.message if failure else None,
            prompt_tokens=prompt,
            output_tokens=output or len(self._times),
            counted=output > 0,
        )
