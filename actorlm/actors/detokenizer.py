"""The Detokenizer: token ids in, text out.

Owns: the text state of each open request (incomplete characters, possible stop strings). Receives Open and Close from
frontends, TokensSampled from engines; sends each frontend one TextDelta per batch. Must not know: sampling, HTTP.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from typing import NamedTuple, assert_never

import structlog

from actorlm.actors.membership import Membership
from actorlm.actors.roster import Roster
from actorlm.errors import ActorlmError, ProtocolError
from actorlm.logprobs import unpack
from actorlm.messages.actor import CollectMetrics, PeerLost, Stop
from actorlm.messages.balancer import HopEnded, HopPart, RequestRefused
from actorlm.messages.detokenizer import Close, Inbox, Open, TokensSampled
from actorlm.messages.frontend import Finish, Opened
from actorlm.messages.supervisor import PeerStuck
from actorlm.runtime.actor import Actor
from actorlm.runtime.errors import PeerFull, PeerUnknown
from actorlm.runtime.events import LinkEvent, LinkRefused, LinkUp, PeerJoined
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.network import Server
from actorlm.text.delta_batch import DeltaBatch
from actorlm.text.detokenize import TextStream
from actorlm.text.tokenizer import Tokenizer
from actorlm.wire import Message, read_int32, read_int64

log = structlog.get_logger(__name__)

RETRY_S = 0.02
"""Pause before deltas are offered again to a frontend that had no room for them."""


class _OpenText(NamedTuple):
    frontend: str
    attempt: int
    stream: TextStream
    trace_id: str
    opened_ns: int | None = None
    """Of those that are traced."""


class Detokenizer(Actor[Inbox | LinkEvent]):
    """The shell around one `text.detokenize.TextStream` per request."""

    def __init__(
        self,
        name: str,
        mailbox: Mailbox[Inbox | LinkEvent],
        server: Server,
        membership: Membership,
        tokenizer: Tokenizer,
    ) -> None:
        super().__init__(name, mailbox)
        self._server = server
        self._membership = membership
        self._tokenizer = tokenizer
        self._roster = Roster()
        self._open: dict[int, _OpenText] = {}
        self._batches: dict[str, DeltaBatch] = defaultdict(DeltaBatch)
        self._retry: asyncio.TimerHandle | None = None
        self.spawn(membership.beat(self))

    def receive(self, sender: str, message: Inbox | LinkEvent) -> None:
        """The detokenizer's table of contents."""
        match message:
            case TokensSampled():
                self._push(message)
            case Open():
                self._start(sender, message)
            case Close():
                self._close(sender, read_int64(message.requests))
            case PeerLost():
                self._lose(message)
            case CollectMetrics():
                self._membership.report(message.token, self)
            case Stop():
                self.stop()
            case LinkUp():
                self._membership.linked()
                self._membership.ready()
            case LinkRefused():
                raise ActorlmError(message.reason)
            case PeerJoined():
                self._greet(message)
            case _:
                assert_never(message)

    def after_batch(self) -> None:
        """Sends every frontend what has become text."""
        for frontend, batch in self._batches.items():
            self._send(frontend, batch)

    def _start(self, sender: str, message: Open) -> None:
        message.check()
        try:
            stream = self._stream(message)
        except ProtocolError as error:  # nothing will come of this attempt, so its frontend must know
            self._answer(sender, RequestRefused(message.request, message.attempt, 500, "internal_error", error.message))
            raise
        opened_ns = time.monotonic_ns() if message.traced else None
        self._open[message.request] = _OpenText(sender, message.attempt, stream, message.trace_id, opened_ns)
        log.debug("text opened", request_id=message.trace_id, request=message.request, attempt=message.attempt)
        self._answer(sender, Opened(message.request, message.attempt))

    def _stream(self, message: Open) -> TextStream:
        return TextStream(
            self._tokenizer,
            context_ids=read_int32(message.context_ids),
            generated_ids=read_int32(message.generated_ids),
            delivered_characters=message.delivered_characters,
            stop=message.stop,
            include_stop=message.include_stop,
            skip_special_tokens=message.skip_special_tokens,
            spaces_between_special_tokens=message.spaces_between_special_tokens,
        )

    def _answer(self, frontend: str, message: Message) -> None:
        try:
            self._server.send(frontend, message)
        except PeerUnknown:
            return
        except PeerFull:
            self._membership.say(PeerStuck(frontend))

    def _push(self, message: TokensSampled) -> None:
        message.check()
        attempts, counts, cached = map(read_int32, (message.attempts, message.counts, message.cached))
        scores = None if message.logprobs is None else unpack(message.logprobs)
        tokens, start = read_int32(message.tokens), 0
        for row, request in enumerate(read_int64(message.requests)):
            ids = tokens[start : start + counts[row]].tolist()
            start += counts[row]
            text = self._open.get(request)
            if text is None or text.attempt != attempts[row]:
                continue  # closed, or a late message of an older attempt
            piece = text.stream.push(ids, Finish(message.finishes[row]))
            known = None if scores is None else scores[row]
            if known is not None and piece.count < len(known.output):
                known.output = known.output.part(0, piece.count)
            self._batches[text.frontend].add(
                request, text.attempt, ids[: piece.count], piece.text, piece.finish, cached[row], known
            )
            if piece.finish:
                self._forget(request)
                log.debug("text ended", request_id=text.trace_id, request=request, reason=piece.finish.name.lower())

    def _close(self, sender: str, requests: "memoryview[int]") -> None:
        for request in requests:
            self._forget(request)
            self._batches[sender].drop(request)

    def _forget(self, request: int) -> None:
        text = self._open.pop(request, None)
        if text is not None and text.opened_ns is not None:
            part = HopPart("detokenizer", 0, time.monotonic_ns() - text.opened_ns)
            with contextlib.suppress(PeerUnknown, PeerFull):  # a span is worth no more
                self._server.send(text.frontend, HopEnded(request, text.attempt, part.name, self.name, (part,)))

    def _greet(self, message: PeerJoined) -> None:
        if self._roster.joined(message):
            self._end_of(message.name)

    def _lose(self, message: PeerLost) -> None:
        if self._roster.lost(message):
            self._server.bury(message.name, message.incarnation)
            self._end_of(message.name)

    def _end_of(self, frontend: str) -> None:
        self._batches.pop(frontend, None)
        for request in [request for request, text in self._open.items() if text.frontend == frontend]:
            del self._open[request]

    def _send(self, frontend: str, batch: DeltaBatch) -> None:
        while batch:
            try:
                self._server.send(frontend, batch.message())
            except PeerFull:
                self._offer_again()
                return
            except PeerUnknown:
                pass  # its loss is announced by the supervisor; nobody is left to read this
            batch.sent()

    def _offer_again(self) -> None:
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._offer)

    def _offer(self) -> None:
        self._retry = None
        self.after_batch()
