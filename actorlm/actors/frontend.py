"""The Frontend: owns requests from their acceptance to their last byte.

Behind it everything is soft state. Receives text from detokenizers, refusals and interruptions from the balancer, the
tree's state from the supervisor; what clients say over ZeroMQ it passes on to `actors/clients.py`. Must not know: HTTP,
which asks it through `actors/backend.py`; tensors.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, assert_never

import structlog

from actorlm.actors.attempts import NO_FLEET, Attempts
from actorlm.actors.clients import Clients
from actorlm.actors.exposition import Exposition
from actorlm.actors.generation import MAX_UNREAD_BYTES, MOST_UNREAD_BYTES, NOWHERE, UNREAD_S, Choice, Generation
from actorlm.actors.ledger import Ledger
from actorlm.actors.membership import Membership
from actorlm.actors.spans import NoSpans
from actorlm.actors.telemetry import Telemetry
from actorlm.api.pace import Pace
from actorlm.api.ports import FINISH_REASONS, ID_BYTES, Delta, Envelope, Submission
from actorlm.errors import ActorlmError, Overloaded, RateLimited, Unavailable, from_wire
from actorlm.logprobs import unpack
from actorlm.messages.actor import (
    CollectMetrics,
    Drain,
    MetricsCollected,
    PeerLost,
    Retire,
    Stop,
    TreeChanged,
    TreeState,
)
from actorlm.messages.balancer import HopEnded, RequestRefused
from actorlm.messages.detokenizer import Close
from actorlm.messages.engine import Abort
from actorlm.messages.frontend import (
    Chat,
    Complete,
    Finish,
    FleetChanged,
    Inbox,
    Opened,
    Pong,
    RequestsInterrupted,
    TextDelta,
    Withdraw,
)
from actorlm.messages.supervisor import Drained, PeerStuck
from actorlm.requests import request_ids
from actorlm.runtime.actor import Actor
from actorlm.runtime.errors import NotConnected, PeerFull
from actorlm.runtime.events import LinkEvent, LinkRefused, LinkUp, PeerJoined
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.network import Link
from actorlm.topology import Role
from actorlm.wire import Message, int64, read_int32, read_int64

MAX_OPEN = 32_768
"""Choices that one frontend holds; one more is refused with 429."""

HTTP_GRACE_S = 2.0
"""Time that responses get to say that the server is shutting down."""
LINGER_S = 1.0
"""Time that a connection which rests gets for one more request, when others take the new ones."""

log = structlog.get_logger(__name__)


class Frontend(Actor[Inbox | LinkEvent]):
    """The table of open generations, and the actor around it."""

    def __init__(
        self,
        name: str,
        mailbox: Mailbox[Inbox | LinkEvent],
        *,
        index: int,
        incarnation: int,
        served_name: str,
        balancer: Link,
        detokenizers: Mapping[int, Link],
        membership: Membership,
        request_timeout_s: float,
        spans: NoSpans | None = None,
    ) -> None:
        super().__init__(name, mailbox)
        self._balancer = balancer
        self._detokenizers = detokenizers
        self._membership = membership
        self._spans = spans or NoSpans()
        self._telemetry = Telemetry(membership.metrics, self._spans)
        self._ids = request_ids(index, incarnation)
        self._open: dict[int, Choice] = {}
        self._ledger, self._pace = Ledger(request_timeout_s, self._fail), Pace()
        self._unwanted: list[Choice] = []
        self._attempts = Attempts(
            name,
            self._open,
            balancer=balancer,
            detokenizers=detokenizers,
            membership=membership,
            spans=self._spans,
            fail=lambda choice, error: self._fail(choice.generation, error),
        )
        self._tree = TreeState.STARTING
        self._serving = False
        self._draining = False
        self._exposition = Exposition(served_name, membership, self._ids)
        self._stop_http: Callable[[float, float], Coroutine[Any, Any, None]] | None = None
        self._clients: Clients | None = None
        membership.count_requests(lambda: (len(self._open), 0))
        self.spawn(membership.beat(self))

    def receive(self, sender: str, message: Inbox | LinkEvent) -> None:
        """The frontend's table of contents."""
        match message:
            case TextDelta():
                self._deliver(message)
            case Opened():
                self._attempts.opened(message)
            case RequestRefused():
                self._refused(message)
            case RequestsInterrupted():
                self._attempts.interrupted(message)
            case HopEnded():
                self._spans.hop(message)
            case FleetChanged():
                self._attempts.fleet = message
                self._attempts.go_on()
            case TreeChanged():
                self._tree = message.state
            case PeerLost():
                self._lose(message)
            case MetricsCollected():
                self._exposition.collected(message)
            case CollectMetrics():
                self._membership.report(message.token, self)
            case Drain() | Retire():
                self._finish(message)
            case Stop():
                self.spawn(self._shut_down())
            case LinkUp():
                self._linked(message.peer)
            case LinkRefused():
                raise ActorlmError(message.reason)
            case Complete() | Chat() | Withdraw() | Pong() | PeerJoined():
                assert self._clients is not None, "clients join after `admit`"
                self._clients.receive(sender, message)
            case _:
                assert_never(message)

    # What the HTTP face asks for.

    @property
    def state(self) -> TreeState:
        """What the tree can do, as far as this frontend can reach it."""
        if self._draining:
            return TreeState.DRAINING
        # The supervisor may know of a successor before this frontend is connected to it.
        if self._tree.accepts and not self._attempts.reach_all_roles:
            return TreeState.UNAVAILABLE
        return self._tree

    @property
    def kv_capacity_tokens(self) -> int:
        """What every replica's KV cache can hold; 0 while no replica takes requests."""
        return self._attempts.fleet.kv_capacity_tokens

    def submit(self, submissions: Sequence[Submission], envelope: Envelope) -> Generation:
        """Accepts all of these choices or none. Raises Unavailable or Overloaded."""
        if not self.state.accepts:
            raise Unavailable(f"the server is {self.state}; try again later")
        if len(self._open) + len(submissions) > MAX_OPEN:
            raise Overloaded(f"{len(self._open)} choices are open and at most {MAX_OPEN} may be; try again later")
        generation, now = Generation(self._abort), time.monotonic()
        try:
            self._ledger.open(generation, submissions, envelope, now)
        except RateLimited as error:
            self._telemetry.refused(error)
            raise
        about = envelope.request_id, envelope.placement, envelope.caller
        choices = [
            Choice(next(self._ids), index, submission, NOWHERE, now, generation, *about)
            for index, submission in enumerate(submissions)
        ]
        generation.begin(choices)
        self._open.update({choice.id: choice for choice in choices})
        self._telemetry.accepted(choices)
        for choice in choices:
            if choice.id in self._open:  # none is left once one has failed
                self._attempts.begin(choice)
        return generation

    async def metrics(self) -> bytes:
        """The metrics of all actors in Prometheus' text format. Raises Unavailable if the supervisor is silent."""
        return await self._exposition.read()

    # The life of a generation.

    def _deliver(self, message: TextDelta) -> None:
        now = time.monotonic()
        attempts, counts, cached = map(read_int32, (message.attempts, message.counts, message.cached))
        scores = None if message.logprobs is None else unpack(message.logprobs)
        end = 0
        for row, request in enumerate(read_int64(message.requests)):
            begin, end = end, end + ID_BYTES * counts[row]
            choice = self._open.get(request)
            if choice is None or choice.attempt != attempts[row]:
                continue  # aborted, or a late message of an older attempt
            finish = Finish(message.finishes[row])
            text, ids = message.texts[row], message.tokens[begin:end]
            held = choice.take_text(text, ids, cached[row])
            if counts[row] or finish:
                self._telemetry.text_came(choice, counts[row], now)
            if counts[row]:
                self._attempts.gained(choice)
            if finish:
                self._complete(choice, finish, held, now)
            reason = FINISH_REASONS.get(finish)
            known = None if scores is None else choice.take_scores(scores[row])
            delta = Delta(choice.index, text, counts[row], reason, held, ids, known)
            choice.generation.feed(delta)
            if choice.generation.is_left_behind(now):
                self._leave_behind(choice)

    def _complete(self, choice: Choice, finish: Finish, cached: int, now: float) -> None:
        if finish is Finish.STOP_STRING:
            self._tell(self._balancer, Abort(int64([choice.id])))
        self._telemetry.finished(choice, cached, now)
        self._end(choice, FINISH_REASONS[finish])

    def _end(self, choice: Choice, reason: str) -> None:
        """The one place where a choice leaves the table, whatever ended it."""
        del self._open[choice.id]
        now = time.monotonic()
        self._ledger.close(choice, len(choice.ids), now)
        self._pace.ended(now)
        self._telemetry.ended(choice, reason)
        self._report_drained()

    def _fail(self, generation: Generation, error: ActorlmError) -> None:
        """Ends a request with an error: what is left of it is spared."""
        left = generation.fail(error)
        for choice in left:
            self._end(choice, "error")
        self._spare(left)

    def _leave_behind(self, choice: Choice) -> None:
        """Its client hardly reads, and what waits for it has become too much."""
        error = Overloaded(
            f"what was sent was not read within {UNREAD_S:g} s while more than {MAX_UNREAD_BYTES} bytes waited behind"
            f" it, or more than {MOST_UNREAD_BYTES} bytes wait; read faster, or ask for less"
        )
        log.warning("client left behind", request_id=choice.trace_id, reason=error.message)
        self._fail(choice.generation, error)

    def _abort(self, choices: Sequence[Choice]) -> None:
        for choice in choices:
            self._end(choice, "abort")
        self._spare(choices)

    def _spare(self, choices: Sequence[Choice]) -> None:
        """Nobody wants these any more: tells those behind, in one message for all that come in one turn of the loop."""
        if choices and not self._unwanted:
            asyncio.get_running_loop().call_soon(self._tell_unwanted)
        self._unwanted += choices

    def _tell_unwanted(self) -> None:
        unwanted, self._unwanted = self._unwanted, []
        for index, link in self._detokenizers.items():
            owned = [choice.id for choice in unwanted if choice.detokenizer == index]
            if owned:
                self._tell(link, Close(int64(owned)))
        self._tell(self._balancer, Abort(int64(choice.id for choice in unwanted)))

    def _refused(self, message: RequestRefused) -> None:
        if not self._attempts.refused(message):
            error = from_wire(message.status, message.code, message.message, message.param)
            if isinstance(error, Overloaded):
                self._telemetry.refused(error)
                error.retry_after = self._pace.refused(time.monotonic())
            self._fail(self._open[message.request].generation, error)

    # The tree around it.

    def _lose(self, message: PeerLost) -> None:
        """A replica's loss comes from the balancer, which knows whose requests it had; they go on without one."""
        if message.role == Role.BALANCER:
            self._attempts.fleet = NO_FLEET
        elif message.role == Role.DETOKENIZER:
            self._attempts.lose_texts(message.name)

    def serve(self, stop_http: Callable[[float, float], Coroutine[Any, Any, None]]) -> None:
        """HTTP is listening; `stop_http` closes it: see `api.server.HttpServer.stop`."""
        self._stop_http = stop_http
        self._report_ready()

    def admit(self, clients: Clients) -> None:
        """Clients may join over ZeroMQ."""
        self._clients = clients
        self.spawn(clients.watch())

    def _linked(self, peer: str) -> None:
        if peer == Role.SUPERVISOR:
            self._membership.linked()
        elif peer == self._balancer.peer:
            self._attempts.take_stock()
        else:
            self._attempts.lose_texts(peer)
        self._attempts.go_on()
        self._report_ready()

    def _report_ready(self) -> None:
        links = (self._balancer, *self._detokenizers.values())
        if self._stop_http is not None and all(link.is_up for link in links) and not self._serving:
            self._serving = True
            self._membership.ready()

    def _finish(self, message: Drain | Retire) -> None:
        if isinstance(message, Retire):
            self.spawn(self._retire(message.seconds))
        else:
            self._drain()

    def _drain(self) -> None:
        self._draining = True
        self._report_drained()

    async def _retire(self, seconds: float) -> None:
        """Others take what is new; the connections that there are may end by themselves."""
        if self._clients is not None:
            self._clients.retire()
        if self._stop_http is not None:
            await self._stop_http(seconds, LINGER_S)
        self._drain()

    def _report_drained(self) -> None:
        if self._draining and not self._open:
            self._membership.say(Drained())

    async def _shut_down(self) -> None:
        """Ends what is left with an error, lets the responses say so, and stops."""
        self._draining = True
        for generation in {choice.generation for choice in self._open.values()}:
            self._fail(generation, Unavailable("the server is shutting down"))
        clients = [self._clients.settle()] if self._clients is not None else []
        http = [self._stop_http(HTTP_GRACE_S, 0.0)] if self._stop_http is not None else []
        await asyncio.gather(*clients, *http)
        self.stop()

    def _tell(self, link: Link, message: Message) -> None:
        """Sends what spares work. A peer that is gone has nothing to spare; one that is full is stuck."""
        try:
            link.send(message)
        except NotConnected:
            return
        except PeerFull:
            self._membership.say(PeerStuck(link.peer))
