"""The server's end of a network, over any transport: handshakes, sessions, and messages into one mailbox."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from actorlm.runtime.codec import Body, Codec
from actorlm.runtime.errors import (
    BadHeader,
    HandshakeRefused,
    MailboxFull,
    SequenceGap,
    UnexpectedKind,
    UnknownSession,
)
from actorlm.runtime.events import PeerJoined
from actorlm.runtime.handshake import MAX_HANDSHAKE_BYTES, Hello, Peer, Refused, ServerHandshake
from actorlm.runtime.header import Header, Kind, check_version
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.transport import Transport
from actorlm.wire import Message

_ROUTER = ""
"""The channel of the router's sequence numbers; the others are the names of the one-way sockets."""


class RouterServer:
    """Implements `network.Server`. `handshake` makes the state machine, given the bound one-way addresses."""

    def __init__(
        self,
        transport: Transport,
        address: str,
        *,
        handshake: Callable[..., ServerHandshake],
        mailbox: Mailbox[Any],
        inbox: Any,
        admits: Collection[str],
        one_way: Mapping[str, str],
        clock: Callable[[], int],
    ) -> None:
        self._mailbox = mailbox
        self._inbox: Codec[Message] = Codec(inbox)
        self._hello = Codec[Hello](Hello, MAX_HANDSHAKE_BYTES)
        self._clock = clock
        self._pulls = {
            name: transport.pull(pull_address, mailbox, partial(self._receive_one_way, name), admits)
            for name, pull_address in one_way.items()
        }
        self._handshake = handshake(one_way=self.one_way)
        self._router = transport.listen(address, mailbox, self._receive, admits)

    @property
    def address(self) -> str:
        """See `network.Server`."""
        return self._router.address

    @property
    def one_way(self) -> Mapping[str, str]:
        """See `network.Server`."""
        return {name: socket.address for name, socket in self._pulls.items()}

    @property
    def peers(self) -> Collection[str]:
        """See `network.Server`."""
        return self._handshake.peers

    def send(self, peer_name: str, message: Message) -> None:
        """See `network.Server`."""
        peer = self._handshake.peer(peer_name)
        header = Header(Kind.MESSAGE, peer.session, peer.sent + 1, self._clock())
        self._router.send(header, message, peer.route)
        peer.sent += 1

    def forget(self, peer_name: str) -> None:
        """See `network.Server`."""
        self._handshake.forget(peer_name)

    def bury(self, peer_name: str, incarnation: int) -> None:
        """See `network.Server`."""
        self._handshake.bury(peer_name, incarnation)

    def close(self, flush_s: float) -> None:
        """Closes all sockets."""
        for socket in (self._router, *self._pulls.values()):
            socket.close(flush_s)

    def _receive(self, route: bytes, header: Header, body: Body, key_role: str) -> None:
        self._check_version(route, header)
        match header.kind:
            case Kind.MESSAGE:
                self._receive_message(route, header, body)
            case Kind.HELLO:
                self._greet(route, header.sequence, self._hello.read(body), key_role)
            case _:
                raise UnexpectedKind(f"a server was sent {header.kind.name}")

    def _receive_message(self, route: bytes, header: Header, body: Body) -> None:
        try:
            peer = self._handshake.find(header.session, route)
            self._handshake.advance(peer, _ROUTER, header.sequence)
        except (UnknownSession, SequenceGap):
            self._reply(route, Kind.HANDSHAKE_REQUIRED, session=header.session)
            raise
        self._mailbox.put(peer.name, self._inbox.read(body))

    def _receive_one_way(self, channel: str, _route: bytes, header: Header, body: Body, _key_role: str) -> None:
        check_version(header)
        if header.kind is not Kind.MESSAGE:
            raise UnexpectedKind(f"a one-way socket was sent {header.kind.name}")
        peer = self._handshake.find(header.session)
        try:
            self._handshake.advance(peer, channel, header.sequence)
        except SequenceGap:
            self._reply(peer.route, Kind.HANDSHAKE_REQUIRED, session=header.session)
            raise
        self._mailbox.put(peer.name, self._inbox.read(body))

    def _greet(self, route: bytes, attempt: int, hello: Hello, key_role: str) -> None:
        answer = self._handshake.greet(route, attempt, hello, key_role)
        if isinstance(answer, Refused):
            self._reply(route, Kind.REFUSED, answer, sequence=attempt)
            raise HandshakeRefused(str(answer))
        if answer.is_new:
            self._announce(answer.peer)
        self._reply(route, Kind.WELCOME, answer.welcome, session=answer.peer.session, sequence=attempt)

    def _announce(self, peer: Peer) -> None:
        """Tells the actor. If that fails the peer has no session: it asks again, and the actor never misses one."""
        try:
            joined = self._mailbox.put(peer.name, PeerJoined(peer.name, peer.role, peer.incarnation))
        except MailboxFull:
            joined = False
        if not joined:
            self._handshake.forget(peer.name)
            raise MailboxFull(f"the mailbox of {self._mailbox.name} has no room for the news that {peer.name} joined")

    def _check_version(self, route: bytes, header: Header) -> None:
        try:
            check_version(header)
        except BadHeader as error:
            if header.kind is Kind.HELLO:
                self._reply(
                    route, Kind.REFUSED, self._handshake.refuse("a client", str(error)), sequence=header.sequence
                )
            raise

    def _reply(
        self, route: bytes, kind: Kind, message: Message | None = None, *, session: int = 0, sequence: int = 0
    ) -> None:
        """Answers once. A peer that does not read, or is gone, asks again when it wants to know."""
        self._router.send(Header(kind, session, sequence, self._clock()), message, route)
