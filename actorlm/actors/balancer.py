"""The Balancer: chooses a replica for each request.

Owns: who works on what, until it ends. Receives requests and aborts from frontends, loads and refusals from engines.
Must not know: tokens that are generated; they go from engine to detokenizer to frontend.
"""

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import assert_never

from actorlm.actors.membership import Membership
from actorlm.actors.roster import Roster
from actorlm.errors import ActorlmError, Overloaded, ProtocolError, Unavailable
from actorlm.messages.actor import CollectMetrics, PeerLost, Stop
from actorlm.messages.balancer import Inbox, LoadReported, ReplicaAnnounced, RequestRefused, RequestsEnded
from actorlm.messages.engine import Abort, Generate
from actorlm.messages.frontend import FleetChanged, RequestsInterrupted
from actorlm.messages.supervisor import PeerStuck
from actorlm.requests import frontend_of
from actorlm.runtime.actor import Actor
from actorlm.runtime.errors import PeerFull, PeerUnknown
from actorlm.runtime.events import LinkEvent, LinkRefused, LinkUp, PeerJoined
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.network import Server
from actorlm.scheduling.affinity import block_names
from actorlm.scheduling.balance import Balance, Choice, Wish
from actorlm.scheduling.load import Load, near
from actorlm.topology import Role
from actorlm.wire import Message, int64, read_int64

ITEM_SIZE = 4
"""Bytes of a token id in a column."""


class Balancer(Actor[Inbox | LinkEvent]):
    """The shell around `scheduling.balance.Balance`."""

    def __init__(
        self,
        name: str,
        mailbox: Mailbox[Inbox | LinkEvent],
        server: Server,
        membership: Membership,
        *,
        max_imbalance: int,
        prefix_affinity: bool,
    ) -> None:
        super().__init__(name, mailbox)
        self._server = server
        self._membership = membership
        self._prefix_affinity = prefix_affinity
        self._balance = Balance(max_imbalance)
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
            case RequestsEnded():
                _check_sender(sender, f"engine-{message.replica}", message)
                self._balance.ended(read_int64(message.requests), time.monotonic())
            case LoadReported():
                self._note_load(sender, message)
            case RequestRefused():
                self._refuse(message)
            case ReplicaAnnounced():
                self._join(sender, message)
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
        wish, now = self._wish(message), time.monotonic()
        try:
            choice = self._balance.choose(wish, now)
            self._send(choice.replica, message)
        except (Overloaded, Unavailable) as error:
            self._answer(sender, _refusal(message, error))
            return
        self._balance.place(wish, choice, now)
        self._count_start(choice)

    def _wish(self, message: Generate) -> Wish:
        """What counts of a request. One that wants log-probabilities of its prompt has no use for cached blocks."""
        sampling, generated = message.sampling, len(message.generated_ids) // ITEM_SIZE
        may_share = self._prefix_affinity and sampling.prompt_logprobs is None
        return Wish(
            message.request,
            prefill=len(message.prompt_ids) // ITEM_SIZE + generated,
            decode=near(sampling.max_tokens - generated),
            blocks=block_names(message.prompt_ids, message.cache_salt) if may_share else (),
            session=message.session,
            replica=message.replica,
        )

    def _send(self, replica: int, message: Generate) -> None:
        try:
            self._server.send(f"engine-{replica}", message)
        except PeerFull:
            raise Overloaded(f"replica {replica} does not keep up; try again later") from None
        except PeerUnknown:
            raise Unavailable(f"replica {replica} is restarting; try again later") from None

    def _note_load(self, sender: str, message: LoadReported) -> None:
        _check_sender(sender, f"engine-{message.replica}", message)
        load = Load(message.waiting_tokens, message.prefill_tokens, message.decode_tokens, message.kv_used_tokens)
        self._balance.reported(message.replica, message.received, load, time.monotonic())

    def _abort(self, requests: Iterable[int]) -> None:
        """An engine hears only of its own; one that does not take the message is about to be lost with all of them."""
        by_replica: dict[int, list[int]] = defaultdict(list)
        now = time.monotonic()
        for request in requests:
            replica = self._balance.owner(request)
            if replica is not None:
                self._balance.aborted(request, now)
                by_replica[replica].append(request)
        for replica, owned in by_replica.items():
            self._answer(f"engine-{replica}", Abort(int64(owned)))

    def _refuse(self, message: RequestRefused) -> None:
        self._balance.ended([message.request], time.monotonic())
        self._answer(frontend_of(message.request), message)

    def _join(self, sender: str, message: ReplicaAnnounced) -> None:
        _check_sender(sender, f"engine-{message.replica}", message)
        self._replicas[message.replica] = message
        self._seen.add(message.replica)
        self._balance.join(message.replica, message.kv_capacity_tokens)
        self._tell_frontends()

    def _greet(self, message: PeerJoined) -> None:
        if self._roster.joined(message):
            self._end_of(message.name, message.role)
        if message.role == Role.FRONTEND:
            self._answer(message.name, self._fleet())

    def _lose(self, message: PeerLost) -> None:
        if self._roster.lost(message):
            self._server.forget(message.name)
            self._end_of(message.name, message.role)

    def _end_of(self, name: str, role: str) -> None:
        if role == Role.FRONTEND:
            self._abort([request for request in self._balance.requests if frontend_of(request) == name])
        if role == Role.ENGINE:
            self._lose_replica(int(name.removeprefix("engine-")), name)

    def _lose_replica(self, replica: int, name: str) -> None:
        if self._replicas.pop(replica, None) is None:
            return
        by_frontend: dict[str, list[int]] = defaultdict(list)
        for request in self._balance.leave(replica):
            by_frontend[frontend_of(request)].append(request)
        for frontend, lost in by_frontend.items():
            self._answer(frontend, RequestsInterrupted(int64(lost), name))
        self._tell_frontends()

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


def _check_sender(sender: str, expected: str, message: Message) -> None:
    if sender != expected:
        raise ProtocolError(f"{sender} says {type(message).__name__} for {expected}")


def _refusal(message: Generate, error: ActorlmError) -> RequestRefused:
    return RequestRefused(message.request, message.attempt, error.status, error.code, error.message, error.param)
