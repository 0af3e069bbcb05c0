"""What an actor sees of a network: servers that peers join, links to servers, and one-way pushers.

Nothing here waits: what cannot leave now raises a subclass of NotDelivered, and its sender decides.
"""

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from actorlm.runtime.handshake import Welcome
from actorlm.runtime.identity import Identity
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.tally import Tally
from actorlm.wire import Message

FLUSH_S = 1.0


class Server(Protocol):
    """An address that peers of admitted roles join. Its actor is told by PeerJoined."""

    @property
    def address(self) -> str:
        """The actual address, if a port was left to the system to choose."""

    @property
    def one_way(self) -> Mapping[str, str]:
        """The actual addresses of its one-way sockets, by name."""

    @property
    def peers(self) -> Collection[str]:
        """The names of the peers that have a session."""

    def send(self, peer_name: str, message: Message) -> None:
        """Raises PeerUnknown, or PeerFull at the bound of the peer's queue."""

    def forget(self, peer_name: str) -> None:
        """Ends the peer's session. If it is alive it joins again, with the next thing that it sends."""

    def bury(self, peer_name: str, incarnation: int) -> None:
        """Ends the peer's session for good: this life of it is refused from now on, if it is alive after all."""


class Pusher(Protocol):
    """A one-way socket to a link's peer."""

    def send(self, message: Message) -> None:
        """Raises NotConnected while the link is down, PeerFull at the bound."""


class Link(Protocol):
    """A connection to one server, made again whenever it is lost. Its actor is told by LinkUp or LinkRefused."""

    @property
    def peer(self) -> str:
        """The server's name, which is the sender of all that comes from it."""

    @property
    def is_up(self) -> bool:
        """Whether there is a session."""

    @property
    def welcome(self) -> Welcome:
        """The server's last Welcome; its session is 0 before the first."""

    def send(self, message: Message) -> None:
        """Raises NotConnected while the link is down, PeerFull at the bound."""

    def pusher(self, socket_name: str) -> Pusher:
        """The peer's one-way socket of this name. It may be asked for before the link is up."""


class Network(Protocol):
    """Servers and links of one process, all in one event loop."""

    @property
    def tallies(self) -> Collection[Tally]:
        """What went through each socket and what it dropped."""

    def serve(
        self,
        address: str,
        *,
        identity: Identity,
        mailbox: Mailbox[Any],
        inbox: Any,
        admits: Collection[str],
        one_way: Mapping[str, str] | None = None,
        topic: bytes = b"",
    ) -> Server:
        """Binds `address`, and the `one_way` addresses that each Welcome hands out by name together with `topic`.

        All messages of `inbox`, a union, arrive in `mailbox`. Raises AddressUnusable.
        """

    def connect(
        self,
        address: str,
        *,
        peer: str,
        identity: Identity,
        mailbox: Mailbox[Any],
        inbox: Any,
        peer_role: str | None = None,
    ) -> Link:
        """A link to the server `peer`, whose messages of `inbox` arrive in `mailbox`. Raises AddressUnusable.

        Where there are keys the server must have that of `peer_role`, which its name says unless it is given.
        """

    async def close(self, flush_s: float = FLUSH_S) -> None:
        """Ends all servers and links; what was sent gets up to `flush_s` seconds to leave."""
