"""The Balancer: chooses a replica for each request.

Owns: who works on what, until it ends. Receives requests and aborts from frontends, loads and refusals from engines.
Must not know: tokens that are generated; they go from engine to detokenizer to frontend.

What it owns is soft: a new balancer, or one whose connection to a peer was lost, has frontends say what they have with
engines and engines what they hold, and compares (`scheduling.reunion`). Meanwhile tokens flow.
"""

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import assert_never

import structlog

from actorlm.actors.membership import Membership
from actorlm.actors.roster import Roster
from actorlm.errors import ActorlmError, ProtocolError, Unavailable
from actorlm.messages.actor import Census, CollectMetrics, PeerLost, Stop
from actorlm.messages.balancer import (
    Acquitted,
    HopEnded,
    Inbox,
    Inventory,
    LoadReported,
    ReplicaAnnounced,
    RequestRefused,
    RequestsEnded,
    RequestsLost,
    TextsCutOff,
)
from actorlm.messages.engine import Abort, Generate
from actorlm.messages.frontend import FleetChanged, RequestsInterrupted
from actorlm.messages.supervisor import PeerStuck
from actorlm.names import engine_of, replica_of
from actorlm.requests import frontend_of
from actorlm.runtime.actor import Actor
from actorlm.runtime.errors import PeerFull, PeerUnknown
from actorlm.runtime.events import LinkEvent, LinkRefused, LinkUp, PeerJoined
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.network import Server
from actorlm.scheduling.affinity import block_names
from actorlm.scheduling.balance import Balance, Choice, Room, Wish
from actorlm.scheduling.load import Load, near
from actorlm.scheduling.reunion import Attempt, Reunion
from actorlm.scheduling.trials import Trials
from actorlm.topology import Role
from actorlm.wire import Message, int32, int64, read_int32, read_int64

log = structlog.get_logger(__name__)

ITEM_SIZE = 4
"""Bytes of a token id in a column."""


class Balancer(Actor[Inbox | LinkEvent]):
    """The shell around `scheduling.balance.Balance`, and around what brings its knowledge back."""

    def __init__(
        self,
        name: str,
        mailbox: Mailbox[Inbox | LinkEvent],
        server: Server,
        membership: Membership,
        *,
        max_imbalance: int,
        prefix_affinity: bool,
        room: Room,
    ) -> None:
        super().__init__(name, mailbox)
        self._server = server
        self._membership = membership
        self._prefix_affinity = prefix_affinity
        self._balance = Balance(max_imbalance, room)
        self._reunion = Reunion()
        self._trials: Trials[Generate] = Trials()
        self._roster = Roster()
        self._replicas: dict[int, ReplicaAnnounced] = {}
        self._seen: set[int] = set()
        self.spawn(membership.beat(self))

    def receive(self, sender: str, message: Inbox | LinkEvent) -> None:
        """The balancer's table of contents."""
        match message:
            case Generate():
                self._route(sender, message)
            case Abort():
                self._abort(read_int64(message.requests))
            case Acquitted():
                _check_sender(sender, frontend_of(message.request), message)
                self._end_trials([message.request])
            case RequestsEnded():
                _check_sender(sender, engine_of(message.replica), message)
                self._ended(sender, read_int64(message.requests))
            case RequestsLost():
                _check_sender(sender, engine_of(message.replica), message)
                self._interrupt(_attempts(message.requests, message.attempts), message.cause)
            case TextsCutOff():
                _check_sender(sender, engine_of(message.replica), message)
                self._balance.cut_off(message.replica, message.detokenizers)
            case LoadReported():
                self._note_load(sender, message)
            case RequestRefused():
                self._refuse(sender, message)
            case HopEnded():
                self._answer(frontend_of(message.request), message)
            case ReplicaAnnounced():
                self._join(sender, message)
            case Inventory():
                self._take_stock(sender, message)
            case Census():
                self._expect(message)
            case PeerJoined():
                self._greet(message)
            case PeerLost():
                self._lose(message)
            case CollectMetrics():
                self._count_work()
                self._membership.report(message.token, self)
            case Stop():
                self.stop()
            case LinkUp():
                self._membership.linked()
                self._membership.ready()
            case LinkRefused():
                raise ActorlmError(message.reason)
            case _:
                assert_never(message)

    def _route(self, sender: str, message: Generate) -> None:
        _check_sender(sender, frontend_of(message.request), message)
        if message.suspect and not self._trials.may_begin(message.request):
            self._trials.wait(message.request, message)
            return
        if not self._place(message):
            self._end_trials([message.request])

    def _place(self, message: Generate) -> bool:
        """Sends a request to a replica, or its refusal to its frontend."""
        wish, now = self._wish(message), time.monotonic()
        try:
            choice = self._balance.choose(wish, now)
            while not self._reaches(choice, message):
                choice = self._balance.choose(wish, now)
        except Unavailable as error:
            log.debug("no replica", request_id=message.trace_id, request=message.request, error=error.message)
            self._answer(frontend_of(message.request), _refusal(message, error))
            return False
        self._balance.place(wish, choice, now)
        self._count_start(choice)
        return True

    def _end_trials(self, requests: Iterable[int]) -> None:
        """None of these is on trial, or waits for its trial, any more. The next one's begins."""
        if not self._trials:
            return
        for request in requests:
            self._trials.over(request)
        while (suspect := self._trials.next()) is not None and not self._place(suspect):
            self._trials.over(suspect.request)

    def _wish(self, message: Generate) -> Wish:
        """What counts of a request. One that wants log-probabilities of its prompt has no use for cached blocks."""
        sampling, generated = message.sampling, len(message.generated_ids) // ITEM_SIZE
        may_share = self._prefix_affinity and sampling.prompt_logprobs is None
        return Wish(
            message.request,
            prefill=len(message.prompt_ids) // ITEM_SIZE + generated,
            decode=near(sampling.max_tokens - generated),
            attempt=message.attempt,
            blocks=block_names(message.prompt_ids, message.cache_salt) if may_share else (),
            session=message.session,
            replica=message.replica,
            detokenizer=message.detokenizer,
        )

    def _reaches(self, choice: Choice, message: Generate) -> bool:
        """Sends the request to the replica. One that is out of reach is dead, or will announce itself again."""
        replica, held = choice.replica, choice.held
        log.debug("routed", request_id=message.trace_id, request=message.request, replica=replica, held=held)
        try:
            self._server.send(engine_of(replica), message)
        except PeerFull:
            self._membership.say(PeerStuck(engine_of(replica)))
        except PeerUnknown:
            pass
        else:
            return True
        self._balance.lose_sight(replica)
        return False

    def _note_load(self, sender: str, message: LoadReported) -> None:
        _check_sender(sender, engine_of(message.replica), message)
        load = Load(message.waiting_tokens, message.prefill_tokens, message.decode_tokens, message.kv_used_tokens)
        self._balance.reported(message.replica, message.received, load, time.monotonic())

    def _abort(self, requests: Iterable[int]) -> None:
        """An engine hears only of its own; one that does not take the message is about to be lost with all of them."""
        requests = list(requests)
        for request in requests:
            self._reunion.ended(request)
        self._abort_placed(requests)
        self._end_trials(requests)

    def _abort_placed(self, requests: Iterable[int]) -> None:
        by_replica: dict[int, list[int]] = defaultdict(list)
        now = time.monotonic()
        for request in requests:
            replica = self._balance.owner(request)
            if replica is not None:
                self._balance.aborted(request, now)
                by_replica[replica].append(request)
        for replica, owned in by_replica.items():
            self._answer(engine_of(replica), Abort(int64(owned)))

    def _ended(self, engine: str, requests: Iterable[int]) -> None:
        requests = list(requests)
        self._balance.ended(replica_of(engine), requests, time.monotonic())
        for request in requests:
            self._reunion.ended(request)
        self._end_trials(requests)

    def _refuse(self, sender: str, message: RequestRefused) -> None:
        self._ended(sender, [message.request])
        self._answer(frontend_of(message.request), message)

    def _interrupt(self, attempts: Iterable[Attempt], cause: str, *, blames: bool = False) -> None:
        by_frontend: dict[str, list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            by_frontend[frontend_of(attempt[0])].append(attempt)
        for frontend, lost in by_frontend.items():
            requests, numbers = zip(*lost, strict=True)
            self._answer(frontend, RequestsInterrupted(int64(requests), int32(numbers), cause, blames))
            self._end_trials(requests)

    # Who comes and goes, and what they have.

    def _join(self, sender: str, message: ReplicaAnnounced) -> None:
        _check_sender(sender, engine_of(message.replica), message)
        replica, unwanted = message.replica, []
        if replica in self._replicas:
            raise ProtocolError(f"{sender} announces itself twice in one session")
        held = _attempts(message.requests, message.attempts)
        self._replicas[replica] = message
        self._seen.add(replica)
        self._balance.join(replica, message.kv_capacity_tokens)
        for request, attempt in held:
            if self._balance.owner(request) is None and self._reunion.holds((request, attempt)):
                self._balance.restore(request, attempt, replica)
            else:
                unwanted.append(request)
        for request in read_int64(message.suspects):
            self._trials.may_begin(request)
        if unwanted:
            self._answer(sender, Abort(int64(unwanted)))
        self._reunion.engine_spoke(sender)
        self._tell_frontends()
        self._settle()

    def _take_stock(self, sender: str, message: Inventory) -> None:
        """What is at a replica as the frontend says goes on there, all else of this frontend ends."""
        claimed = _attempts(message.requests, message.attempts)
        for request, _ in claimed:
            _check_sender(sender, frontend_of(request), message)
        known = dict(claimed)
        placed = [request for request in self._balance.requests if frontend_of(request) == sender]
        right = {request for request in placed if self._balance.attempt(request) == known.get(request)}
        self._abort_placed(request for request in placed if request not in right)
        self._reunion.claim(attempt for attempt in claimed if attempt[0] not in right)
        self._reunion.frontend_spoke(sender)
        self._settle()

    def _expect(self, message: Census) -> None:
        here = {engine_of(replica) for replica in self._replicas}
        self._reunion.expect(set(message.engines) - here)
        self._settle()

    def _settle(self) -> None:
        """What is claimed and held nowhere was lost with the connection over which it was sent."""
        if unheld := self._reunion.unheld():
            self._interrupt(unheld, self.name)

    def _greet(self, message: PeerJoined) -> None:
        """A peer has a session: what was said in an earlier one may be lost, so it is asked what it has."""
        goes_on = self._roster.incarnation(message.name) == message.incarnation
        if self._roster.joined(message) and not goes_on:
            self._end_of(message.name, message.role, blames=False)
        if message.role == Role.FRONTEND:
            self._reunion.frontend_left(message.name)
            self._answer(message.name, self._fleet())
        elif goes_on:
            self._suspend(message.name)

    def _suspend(self, engine: str) -> None:
        """Until it says what it holds, nothing is sent to a replica; what it had is claimed."""
        if self._replicas.pop(replica := replica_of(engine), None) is not None:
            self._reunion.expect([engine])
            self._reunion.claim(self._balance.leave(replica))
            self._tell_frontends()

    def _lose(self, message: PeerLost) -> None:
        if message.role == Role.ENGINE and not self._roster.incarnation(message.name):
            self._reunion.engine_spoke(message.name)  # it was counted and will not come
            self._settle()
        elif self._roster.lost(message):
            self._server.bury(message.name, message.incarnation)
            self._end_of(message.name, message.role, blames=not message.excused)

    def _end_of(self, name: str, role: str, *, blames: bool) -> None:
        if role == Role.FRONTEND:
            self._reunion.frontend_left(name)
            self._abort([request for request in self._balance.requests if frontend_of(request) == name])
        if role == Role.ENGINE:
            self._lose_replica(name, blames)

    def _lose_replica(self, name: str, blames: bool) -> None:
        self._reunion.engine_spoke(name)
        if self._replicas.pop(replica := replica_of(name), None) is not None:
            lost = self._balance.leave(replica)
            self._tell_frontends()
            self._interrupt(lost, name, blames=blames)
        self._settle()

    def _fleet(self) -> FleetChanged:
        replicas = self._replicas.values()
        return FleetChanged(
            tuple(sorted(self._replicas)),
            min((replica.kv_capacity_tokens for replica in replicas), default=0),
            min((replica.max_num_seqs for replica in replicas), default=0),
        )

    def _tell_frontends(self) -> None:
        for name in self._roster.of_role(Role.FRONTEND):
            self._answer(name, self._fleet())

    def _count_start(self, choice: Choice) -> None:
        labels = (str(choice.replica),)
        self._membership.metrics.add("engine_requests_started", 1, labels)
        self._membership.metrics.add("prefix_affinity_tokens", choice.held, labels)

    def _count_work(self) -> None:
        work = self._balance.expected_work
        for replica in self._seen:
            self._membership.metrics.set("engine_expected_work", work.get(replica, 0), (str(replica),))

    def _answer(self, peer: str, message: Message) -> None:
        """Sends to a peer that may be gone: its loss is announced by the supervisor, and ends what it owned."""
        try:
            self._server.send(peer, message)
        except PeerUnknown:
            return
        except PeerFull:
            self._membership.say(PeerStuck(peer))


def _attempts(requests: bytes, attempts: bytes) -> list[Attempt]:
    """The rows of two columns. Raises ProtocolError if they do not fit together."""
    if len(requests) != 2 * len(attempts):
        raise ProtocolError(f"{len(requests)} bytes of requests and {len(attempts)} of attempts have not equal rows")
    return list(zip(read_int64(requests), read_int32(attempts), strict=True))


def _check_sender(sender: str, expected: str, message: Message) -> None:
    if sender != expected:
        raise ProtocolError(f"{sender} says {type(message).__name__} for {expected}")


def _refusal(message: Generate, error: ActorlmError) -> RequestRefused:
    return RequestRefused(message.request, message.attempt, error.status, error.code, error.message, error.param)
