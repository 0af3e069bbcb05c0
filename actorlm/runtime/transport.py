"""What a transport provides: sockets of four kinds. Sessions and messages are the business of the ports above it.

A transport carries a header and a body from one socket to another, in order, with bounded queues. It decodes no
body, and hands over a header without judging its version.
"""

from collections.abc import Callable, Collection
from typing import Protocol

from actorlm.runtime.codec import Body
from actorlm.runtime.header import Header
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.tally import Tally
from actorlm.wire import Message

Receive = Callable[[bytes, Header, Body, str], None]
"""Called with the route (empty but on a router), header and body of each message, and the role of its sender's key, or
"" where there are no keys. Raises what is to be counted."""

Connection = Callable[[bool], None]
"""Called with True when a dealer is connected, with False when it is not any more: what its queues held is lost.

News of a connection may be late, news of a loss comes before `send` fails for it; never while `dial` makes the socket.
"""


Refusal = Callable[[str], None]
"""Called with the reason if the other side of a dealer refuses its key. The dealer goes on to try."""


class Socket(Protocol):
    """One socket of a transport."""

    address: str
    """Where others find it: the actual one, if a port was left to the system to choose."""

    def send(self, header: Header, message: Message | None, route: bytes = b"", /) -> None:
        """Hands a message to the transport. Never waits.

        Raises PeerUnknown if the route leads nowhere, PeerFull at the bound, NotConnected before there is a
        connection, and ProtocolError for a message that cannot be encoded.
        """

    def close(self, flush_s: float, /) -> None:
        """Closes; the transport may go on for `flush_s` seconds to deliver what was sent."""


class Transport(Protocol):
    """Makes sockets, whose reading pauses while `mailbox` asks for it."""

    @property
    def tallies(self) -> Collection[Tally]:
        """One for each kind of socket at each address."""

    def listen(self, address: str, mailbox: Mailbox[object], receive: Receive, admits: Collection[str] = ()) -> Socket:
        """A router: many peers, both directions; with keys, only those that `admits` names. Raises AddressUnusable."""

    def dial(
        self,
        address: str,
        route: bytes,
        mailbox: Mailbox[object],
        receive: Receive,
        connection: Connection,
        *,
        refusal: Refusal,
        server_role: str,
    ) -> Socket:
        """A dealer: one peer, both directions; connects now or when the peer comes, again and again.

        With keys, only to one that has the key of `server_role`.
        """

    def pull(self, address: str, mailbox: Mailbox[object], receive: Receive, admits: Collection[str] = ()) -> Socket:
        """Receives only, from many; with keys as `listen`. Raises AddressUnusable."""

    def push(self, address: str, server_role: str = "") -> Socket:
        """Sends only, to one; with keys as `dial`."""

    async def close(self) -> None:
        """Ends everything; its sockets are closed already."""
