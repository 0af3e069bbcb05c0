"""The answer of a generating route: an ASGI application that reads a Generation and writes events or one body.

Owns the generation from its submission on, and ends it whatever happens. A client that goes away is seen by a watcher
of `receive`, which aborts synchronously: an `await` in a cancelled task is cancelled again. Status and headers leave
with the first delta of any choice, so that a refusal by the engine is an ordinary error; a later failure is an event.
Where silent streams are kept alive they leave at once, and such a refusal is an event too.

A client that reads slowly blocks `send`. Its deltas wait in the generation, merged, and cost what their text costs;
once they are too much the generation fails.
"""

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec
import structlog
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from actorlm.api.errors import as_actorlm_error, describe, send_error
from actorlm.api.lower import UsageReports
from actorlm.api.ports import Delta, FinishReason, Generation
from actorlm.api.schema import PromptTokensDetails, Usage
from actorlm.api.silence import COMMENT, Pauses
from actorlm.api.wire import DONE, Wire
from actorlm.errors import Interrupted, Poisoned, Unavailable
from actorlm.logprobs import Scores, joined

log = structlog.get_logger(__name__)

PIECE_BYTES = 65_536
"""What is sent at once of the events that have gathered for a slow reader."""

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Tally:
    """What the choices of one request have come to. `per_prompt` choices follow each other for each prompt."""

    def __init__(self, prompt_lengths: Sequence[int], per_prompt: int) -> None:
        self._prompt_lengths = prompt_lengths
        self._per_prompt = per_prompt
        self._completion_tokens = 0
        self._cached = [0] * len(prompt_lengths)
        choices = len(prompt_lengths) * per_prompt
        self.opened = [False] * choices
        self.reasons: list[FinishReason | None] = [None] * choices

    def add(self, delta: Delta) -> None:
        """Counts a delta."""
        self._completion_tokens += delta.tokens
        self.reasons[delta.choice] = delta.finish
        prompt, choice = divmod(delta.choice, self._per_prompt)
        if choice == 0:
            self._cached[prompt] = delta.cached_tokens

    def usage(self) -> Usage:
        """A prompt counts once; its cached tokens are those of its first choice."""
        prompt, completion = sum(self._prompt_lengths), self._completion_tokens
        return Usage(prompt, completion, prompt + completion, PromptTokensDetails(sum(self._cached)))

    def ends(self) -> list[FinishReason]:
        """Every choice's reason. Asserts that every choice has ended."""
        ended = [reason for reason in self.reasons if reason is not None]
        assert len(ended) == len(self.reasons), "a generation stopped before all of its choices had ended"
        return ended


class _Whole:
    """What one choice has gained so far."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._scores: Scores | None = None
        self._ids: list[bytes] = []

    def add(self, delta: Delta) -> None:
        self._texts.append(delta.text)
        self._scores = joined(self._scores, delta.scores)
        self._ids.append(delta.ids)

    def delta(self, choice: int, reason: FinishReason) -> Delta:
        """All of it as one delta."""
        text, ids = "".join(self._texts), b"".join(self._ids)
        return Delta(choice, text, 0, reason, scores=self._scores, ids=ids)


class Answer(ASGIResponse):
    """Answers one request from its generation."""

    def __init__(self, generation: Generation, wire: Wire, tally: Tally, *, stream: bool, usage: UsageReports) -> None:
        super().__init__()
        self._generation = generation
        self._wire = wire
        self._tally = tally
        self._stream = stream
        self._usage = usage
        self._gone = False
        self._started = False

    @property
    def generation(self) -> Generation:
        """What is answered, for a caller that reads it instead of having it sent."""
        return self._generation

    @property
    def tally(self) -> Tally:
        """The count that goes with it."""
        return self._tally

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers. Returns early, having sent nothing or a part, if the client goes away."""
        watcher = asyncio.get_running_loop().create_task(self._watch(receive))
        scope["state"]["tally"] = self._tally  # for those around us who tell of it
        try:
            pause = scope["litestar_app"].state.stream_keep_alive_s
            await (self._send_events(send, pause) if self._stream else self._send_whole(send))
        except asyncio.CancelledError:  # only a server that stops cancels an answer, and its clients are told
            self._generation.abort()
            with contextlib.suppress(asyncio.CancelledError):  # cancelled again: the client does not read
                await self._fail(Unavailable("the server is stopping"), send)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer and the log the cause
            await self._fail(error, send)
        finally:
            self._generation.abort()
            watcher.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._generation.abort()

    async def _send_whole(self, send: Send) -> None:
        choices = [_Whole() for _ in self._tally.reasons]
        async for deltas in self._generation:
            for delta in deltas:
                self._tally.add(delta)
                choices[delta.choice].add(delta)
        if self._gone:
            return
        ends = enumerate(zip(choices, self._tally.ends(), strict=True))
        body = self._wire.whole([whole.delta(index, reason) for index, (whole, reason) in ends], self._tally.usage())
        await self._start([(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))], send)
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _send_events(self, send: Send, pause: float) -> None:
        if pause:
            await self._start(STREAM_HEADERS, send)
        async for deltas in Pauses(self._generation, pause) if pause else self._generation:
            events = b"".join([self._events(delta) for delta in deltas]) if deltas else COMMENT
            if not self._started:
                await self._start(STREAM_HEADERS, send)
            await self._send_pieces(events, send)
        if not self._gone:
            await send({"type": "http.response.body", "body": self._closing_events() + DONE, "more_body": False})

    async def _send_pieces(self, events: bytes, send: Send) -> None:
        """`send` waits while the client does not read, so that every piece tells of what has been read."""
        for start in range(0, len(events), PIECE_BYTES):
            await send({"type": "http.response.body", "body": events[start : start + PIECE_BYTES], "more_body": True})
            self._generation.read_on()

    async def _start(self, headers: list[tuple[bytes, bytes]], send: Send) -> None:
        self._started = True
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _fail(self, error: Exception, send: Send) -> None:
        """Answers with an error; the operator is told too of what was accepted and is lost."""
        if not self._started:
            if isinstance(error, Interrupted | Poisoned):
                log.warning("request ended with an error", error=error.message, code=error.code)
            await send_error(error, send)
        elif self._stream:
            ours = as_actorlm_error(error)
            log.warning("stream ended with an error", error=ours.message, code=ours.code)
            event = b"data: " + msgspec.json.encode(describe(ours)) + b"\n\n"
            await send({"type": "http.response.body", "body": event + DONE, "more_body": False})

    def _events(self, delta: Delta) -> bytes:
        wire, tally, choice = self._wire, self._tally, delta.choice
        tally.add(delta)
        usage = tally.usage() if self._usage.every else None
        opening = b""
        if not tally.opened[choice]:
            tally.opened[choice] = True
            opening = wire.opening(choice, usage)
        if delta.finish is not None:
            return opening + wire.finish(delta, usage)
        return opening + wire.text(delta, usage) if wire.shows(delta) else opening

    def _closing_events(self) -> bytes:
        self._tally.ends()
        return self._wire.usage(self._tally.usage()) if self._usage.last else b""
