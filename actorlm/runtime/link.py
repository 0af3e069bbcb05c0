"""The client's end of a network, over any transport: says Hello until it is answered, then carries messages."""

import asyncio
from collections.abc import Callable
from typing import Any

from actorlm.runtime.codec import Body, Codec
from actorlm.runtime.errors import (
    BadHeader,
    MailboxFull,
    NotConnected,
    NotDelivered,
    PeerFull,
    PeerUnknown,
    UnexpectedKind,
)
from actorlm.runtime.events import LinkRefused, LinkUp
from actorlm.runtime.handshake import MAX_HANDSHAKE_BYTES, ClientHandshake, Phase, Refused, Welcome
from actorlm.runtime.header import Header, Kind, check_version
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.transport import Socket, Transport
from actorlm.wire import Message

FIRST_REPEAT_S = 0.02
LAST_REPEAT_S = 0.5


class DealerLink:
    """Implements `network.Link`."""

    def __init__(
        self,
        transport: Transport,
        address: str,
        route: bytes,
        *,
        peer_role: str,
        handshake: ClientHandshake,
        mailbox: Mailbox[Any],
        inbox: Any,
        clock: Callable[[], int],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._peer_role = peer_role
        self._handshake = handshake
        self._mailbox = mailbox
        self._inbox: Codec[Message] = Codec(inbox)
        self._welcome = Codec[Welcome](Welcome, MAX_HANDSHAKE_BYTES)
        self._refused = Codec[Refused](Refused, MAX_HANDSHAKE_BYTES)
        self._clock = clock
        self._pushers: dict[str, PushSocket] = {}
        self._closed = False
        self._repeat_s = FIRST_REPEAT_S
        self._dealer = transport.dial(
            address,
            route,
            mailbox,
            self._receive,
            self._connection,
            refusal=self._refused_key,
            server_role=peer_role,
        )
        self._timer = self._loop.call_soon(self._greet)

    @property
    def peer(self) -> str:
        """See `network.Link`."""
        return self._handshake.peer

    @property
    def is_up(self) -> bool:
        """See `network.Link`."""
        return not self._closed and self._handshake.phase is Phase.UP

    @property
    def welcome(self) -> Welcome:
        """See `network.Link`."""
        return self._handshake.welcome

    def send(self, message: Message) -> None:
        """See `network.Link`."""
        if not self.is_up:
            raise NotConnected(f"the link to {self.peer} is {self._state}")
        header = Header(Kind.MESSAGE, self._handshake.session, self._handshake.sent + 1, self._clock())
        try:
            self._dealer.send(header, message)
        except PeerFull:
            if not self.is_up:
                raise NotConnected(f"the connection to {self.peer} is lost") from None
            raise
        self._handshake.sent += 1

    @property
    def _state(self) -> str:
        return "closed" if self._closed else self._handshake.phase.value

    def pusher(self, socket_name: str) -> "PushSocket":
        """See `network.Link`."""
        if socket_name not in self._pushers:
            self._pushers[socket_name] = PushSocket(self, socket_name, self._transport, self._clock, self._peer_role)
        return self._pushers[socket_name]

    def close(self, flush_s: float) -> None:
        """Closes all sockets, opens none any more, and says Hello no more."""
        self._closed = True
        self._timer.cancel()
        self._dealer.close(flush_s)
        for pusher in self._pushers.values():
            pusher.close(flush_s)

    def _greet(self) -> None:
        """Says Hello now, and again until it is answered."""
        self._timer.cancel()
        if self._closed or self._handshake.phase is not Phase.GREETING:
            return
        self._timer = self._loop.call_later(self._repeat_s, self._greet)
        self._repeat_s = min(2 * self._repeat_s, LAST_REPEAT_S)
        try:
            self._dealer.send(Header(Kind.HELLO, 0, self._handshake.attempt, self._clock()), self._handshake.hello)
        except NotDelivered:
            return  # no connection yet, or no room: the timer says it again

    def _connection(self, made: bool) -> None:
        if self._handshake.connection(made):
            self._repeat_s = FIRST_REPEAT_S
            self._greet()

    def _refused_key(self, reason: str) -> None:
        self._receive_refused(self._handshake.attempt, reason)

    def _receive(self, _route: bytes, header: Header, body: Body, _key_role: str) -> None:
        attempt = self._handshake.attempt
        try:
            self._dispatch(header, body)
        finally:
            if self._handshake.attempt != attempt:
                self._timer.cancel()
                self._timer = self._loop.call_later(self._repeat_s, self._greet)

    def _dispatch(self, header: Header, body: Body) -> None:
        self._check_version(header)
        match header.kind:
            case Kind.MESSAGE:
                self._handshake.advance(header.session, header.sequence)
                self._mailbox.put(self.peer, self._inbox.read(body))
            case Kind.WELCOME:
                if self._handshake.welcomed(header.sequence, self._welcome.read(body)):
                    self._tell(LinkUp(self.peer))
            case Kind.REFUSED:
                self._receive_refused(header.sequence, str(self._refused.read(body)))
            case Kind.HANDSHAKE_REQUIRED:
                self._handshake.required(header.session)
            case _:
                raise UnexpectedKind(f"a client was sent {header.kind.name}")

    def _receive_refused(self, attempt: int, reason: str) -> None:
        if self._handshake.refused(attempt):
            self._tell(LinkRefused(self.peer, reason))

    def _check_version(self, header: Header) -> None:
        try:
            check_version(header)
        except BadHeader as error:
            if header.kind in (Kind.WELCOME, Kind.REFUSED):
                self._receive_refused(header.sequence, str(error))
            raise

    def _tell(self, event: LinkUp | LinkRefused) -> None:
        """Tells the actor. If that fails the link begins again, so that the actor never misses the news."""
        try:
            told = self._mailbox.put(self.peer, event)
        except MailboxFull:
            told = False
        if not told:
            self._handshake.again()
            raise MailboxFull(f"the mailbox of {self._mailbox.name} has no room for the news about {self.peer}")
        self._repeat_s = FIRST_REPEAT_S


class PushSocket:
    """Implements `network.Pusher`: follows its link from session to session."""

    def __init__(
        self, link: DealerLink, name: str, transport: Transport, clock: Callable[[], int], peer_role: str
    ) -> None:
        self._link = link
        self._peer_role = peer_role
        self._name = name
        self._transport = transport
        self._clock = clock
        self._socket: Socket | None = None
        self._session = 0
        self._sent = 0

    def send(self, message: Message) -> None:
        """See `network.Pusher`. Raises PeerUnknown if the peer has no such socket."""
        if not self._link.is_up:
            raise NotConnected(f"the link to {self._link.peer} is down, and with it its socket {self._name}")
        if self._socket is None or self._session != self._link.welcome.session:
            self._socket = self._open(self._link.welcome)
        self._socket.send(Header(Kind.MESSAGE, self._session, self._sent + 1, self._clock()), message)
        self._sent += 1

    def close(self, flush_s: float) -> None:
        """Closes the socket."""
        if self._socket is not None:
            self._socket.close(flush_s)
            self._socket = None

    def _open(self, welcome: Welcome) -> Socket:
        """A new socket for each session: what an old one still holds is for a session that has ended."""
        self.close(0.0)
        address = welcome.one_way.get(self._name)
        if address is None:
            offered = ", ".join(sorted(welcome.one_way)) or "none"
            raise PeerUnknown(f"{self._link.peer} has no one-way socket named {self._name}; it has: {offered}")
        self._session, self._sent = welcome.session, 0
        return self._transport.push(address, self._peer_role)
