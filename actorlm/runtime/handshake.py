"""How two sides agree to talk, as two state machines without I/O: frames' contents in, answers out.

A client says Hello until it is answered; the number of the attempt is in the header, so that a repeated Hello is
answered with the same session and not with a second one. A session ends when its server restarts or forgets the
peer, or when a sequence number shows that messages were lost: then the next message is answered with
HANDSHAKE_REQUIRED and the client begins its next attempt. A client whose connection is lost does so by itself. So
nothing is lost silently.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from typing import Annotated

import msgspec

from actorlm.runtime.errors import PeerUnknown, SequenceGap, UnknownSession
from actorlm.runtime.fingerprint import Fingerprint
from actorlm.runtime.identity import Identity, role_of
from actorlm.wire import Message

MAX_HANDSHAKE_BYTES = 64 * 2**10
MAX_PEERS = 4096

Word = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z", max_length=100)]
"""A name or role: short, printable, without spaces."""


class Hello(Message):
    """A client introduces itself. `structs` are the digests of every struct and inbox of its fingerprint."""

    protocol: int
    fingerprint: str
    structs: dict[str, str]
    role: Word
    name: Word
    incarnation: Annotated[int, msgspec.Meta(ge=0)]
    host: Annotated[str, msgspec.Meta(max_length=255)]
    pid: int

    @property
    def identity(self) -> Identity:
        """Who says this."""
        return Identity(self.role, self.name, self.incarnation, self.host, self.pid)


class Welcome(Message):
    """The client has a session. `one_way` are the addresses of the server's PULL sockets; `topic` its broadcast's."""

    session: int
    one_way: dict[str, str]
    topic: bytes


class Refused(Message):
    """The client may not talk to this server. `difference` is the first struct that differs, or empty."""

    server: str
    client: str
    reason: str
    difference: str = ""

    def __str__(self) -> str:
        return f"{self.server} refuses {self.client}: {self.reason}"


class Peer:
    """A client that has a session: where to reach it, and the last sequence numbers in each direction."""

    def __init__(self, identity: Identity, route: bytes, attempt: int, session: int) -> None:
        self.name = identity.name
        self.role = identity.role
        self.incarnation = identity.incarnation
        self.route = route
        self.attempt = attempt
        self.session = session
        self.sent = 0
        self.received: dict[str, int] = {}


class Admitted(msgspec.Struct, frozen=True):
    """A Hello that is to be answered with `welcome`; `is_new` unless it repeats an earlier one."""

    peer: Peer
    welcome: Welcome
    is_new: bool


class ServerHandshake:
    """The server's side: who has which session. `draw_session` gives random numbers from 1 to 2**32 - 1.

    Sessions are random because a restarted server must not give out the numbers of the one before it.
    """

    def __init__(
        self,
        identity: Identity,
        protocol: Fingerprint,
        *,
        admits: Collection[str],
        draw_session: Callable[[], int],
        one_way: Mapping[str, str] | None = None,
        topic: bytes = b"",
    ) -> None:
        self._identity = identity
        self._protocol = protocol
        self._admits = frozenset(admits)
        self._draw_session = draw_session
        self._one_way = dict(one_way or {})
        self._topic = topic
        self._peers: dict[str, Peer] = {}
        self._sessions: dict[int, Peer] = {}
        self._newest: dict[str, int] = {}

    @property
    def peers(self) -> dict[str, Peer]:
        """The peers that have a session, by name."""
        return dict(self._peers)

    def greet(self, route: bytes, attempt: int, hello: Hello, key_role: str = "") -> Admitted | Refused:
        """The answer to a Hello that came from `route`, from somebody with a key of `key_role`, if there are keys."""
        for reason, difference in self._reasons_to_refuse(route, hello, key_role):
            return self.refuse(str(hello.identity), reason, difference)
        known = self._peers.get(hello.name)
        if known is not None and (known.incarnation, known.attempt) == (hello.incarnation, attempt):
            return Admitted(known, self._welcome(known), is_new=False)
        peer = self._admit(hello, route, attempt)
        return Admitted(peer, self._welcome(peer), is_new=True)

    def refuse(self, client: str, reason: str, difference: str = "") -> Refused:
        """A refusal that names both sides."""
        return Refused(str(self._identity), client, reason, difference)

    def find(self, session: int, route: bytes | None = None) -> Peer:
        """The peer with this session, and with this route if one is given. Raises UnknownSession."""
        peer = self._sessions.get(session)
        if peer is None or route not in (None, peer.route):
            raise UnknownSession(f"a message of session {session}, which {self._identity.name} does not know")
        return peer

    def advance(self, peer: Peer, channel: str, sequence: int) -> None:
        """Counts a message of `peer` on one of our sockets. After a gap the session is over: raises SequenceGap."""
        expected = peer.received.get(channel, 0) + 1
        if sequence != expected:
            self.forget(peer.name)
            raise SequenceGap(peer.name, expected, sequence)
        peer.received[channel] = sequence

    def peer(self, name: str) -> Peer:
        """The peer of this name. Raises PeerUnknown."""
        peer = self._peers.get(name)
        if peer is None:
            raise PeerUnknown(f"{name} has no session with {self._identity.name}")
        return peer

    def forget(self, name: str) -> None:
        """Ends the session of this name, if it has one."""
        peer = self._peers.pop(name, None)
        if peer is not None:
            del self._sessions[peer.session]

    def bury(self, name: str, incarnation: int) -> None:
        """Gives up a life of this name: it and earlier ones get no session any more, should they be alive after all."""
        peer = self._peers.get(name)
        if peer is not None and peer.incarnation <= incarnation:
            self.forget(name)
        self._remember(name, max(self._newest.get(name, 0), incarnation + 1))

    def _welcome(self, peer: Peer) -> Welcome:
        return Welcome(peer.session, self._one_way, self._topic)

    def _reasons_to_refuse(self, route: bytes, hello: Hello, key_role: str) -> Iterator[tuple[str, str]]:
        ours = self._protocol
        if hello.protocol != ours.version:
            yield f"protocol version {hello.protocol} meets {ours.version}; run one version of actorlm everywhere", ""
        if hello.fingerprint != ours.digest:
            first = ours.first_difference(hello.structs) or "fingerprint"
            yield f"the two sides' messages differ, first in {first}; run one version of actorlm everywhere", first
        if hello.role not in self._admits:
            yield f"role {hello.role} is not admitted; admitted are {', '.join(sorted(self._admits))}", ""
        if key_role and hello.role != key_role:
            yield f"role {hello.role} comes with a key of role {key_role}", ""
        if key_role and role_of(hello.name) != key_role:
            yield f"the name {hello.name} comes with a key of role {key_role}; a name begins with its role", ""
        if route != hello.identity.route:
            yield f"routing id {route!r} does not belong to {hello.name}", ""
        if hello.incarnation < (least := self._newest.get(hello.name, 0)):
            yield (
                f"a newer incarnation of {hello.name} has been here, or this one was given up; {least} is the least",
                "",
            )
        if hello.name not in self._peers and len(self._peers) >= MAX_PEERS:
            yield f"{MAX_PEERS} peers are here already", ""

    def _admit(self, hello: Hello, route: bytes, attempt: int) -> Peer:
        self.forget(hello.name)
        session = self._draw_session()
        while session in self._sessions:
            session = self._draw_session()
        peer = Peer(hello.identity, route, attempt, session)
        self._peers[hello.name] = self._sessions[session] = peer
        self._remember(hello.name, hello.incarnation)
        return peer

    def _remember(self, name: str, incarnation: int) -> None:
        self._newest.pop(name, None)
        self._newest[name] = incarnation
        if len(self._newest) > MAX_PEERS:
            del self._newest[next(iter(self._newest))]


class Phase(Enum):
    """Where a client's handshake stands."""

    GREETING = "greeting"
    UP = "up"
    REFUSED = "refused"


class ClientHandshake:
    """The client's side of one link. `attempt` numbers its handshakes; `welcome` is the server's last answer."""

    def __init__(self, identity: Identity, protocol: Fingerprint, peer: str) -> None:
        self.peer = peer
        self.phase = Phase.GREETING
        self.attempt = 1
        self.sent = 0
        self._received = 0
        self.welcome = Welcome(0, {}, b"")
        self.hello = Hello(
            protocol=protocol.version,
            fingerprint=protocol.digest,
            structs=protocol.digests,
            role=identity.role,
            name=identity.name,
            incarnation=identity.incarnation,
            host=identity.host,
            pid=identity.pid,
        )

    @property
    def session(self) -> int:
        """The session of the last Welcome; 0 before the first one."""
        return self.welcome.session

    def welcomed(self, attempt: int, welcome: Welcome) -> bool:
        """Whether this Welcome brings the link up. One that answers a repeated or an older Hello does not.

        If it gives another session for the same attempt, then the server has forgotten us: the next attempt begins.
        """
        if attempt != self.attempt or self.phase is Phase.REFUSED:
            return False
        if self.phase is Phase.UP:
            if welcome.session != self.session:
                self.again()
            return False
        self.phase = Phase.UP
        self.welcome = welcome
        self.sent = self._received = 0
        return True

    def refused(self, attempt: int) -> bool:
        """Whether this Refused answers the attempt in progress, which then is the last one."""
        if self.phase is not Phase.GREETING or attempt != self.attempt:
            return False
        self.phase = Phase.REFUSED
        return True

    def required(self, session: int) -> bool:
        """Whether HANDSHAKE_REQUIRED ends the link's session, so that the next attempt begins now."""
        if self.phase is not Phase.UP or session != self.session:
            return False
        self.again()
        return True

    def connection(self, made: bool) -> bool:
        """Whether a Hello is due now that the connection was made or lost.

        A lost one ends the session. A new one also ends a refusal: the server may be another one than before.
        """
        if self.phase is (Phase.REFUSED if made else Phase.UP):
            self.again()
        return self.phase is Phase.GREETING

    def again(self) -> None:
        """Begins the next attempt."""
        self.phase = Phase.GREETING
        self.attempt += 1

    def advance(self, session: int, sequence: int) -> None:
        """Counts a message of the server.

        Raises SequenceGap if messages were lost, and UnknownSession for one of another session than the link's. If
        the link was up, the two sides disagree, and the next attempt has begun.
        """
        is_up = self.phase is Phase.UP
        expected = self._received + 1
        if is_up and (session, sequence) == (self.session, expected):
            self._received = sequence
            return
        if is_up:
            self.again()
        if session == self.session:
            raise SequenceGap(self.peer, expected, sequence)
        raise UnknownSession(f"a message of {self.peer} in session {session}, which is not this link's")
