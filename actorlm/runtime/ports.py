"""A network over a transport: makes its servers and links, and ends them together."""

import secrets
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from actorlm.runtime.fingerprint import Fingerprint
from actorlm.runtime.handshake import ClientHandshake, ServerHandshake
from actorlm.runtime.identity import Identity, role_of
from actorlm.runtime.link import DealerLink
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.network import FLUSH_S
from actorlm.runtime.server import RouterServer
from actorlm.runtime.tally import Tally
from actorlm.runtime.transport import Transport


def draw_session() -> int:
    """A session number that a restarted server does not give out again, and that nobody guesses."""
    return 1 + secrets.randbelow(2**32 - 1)


class TransportNetwork:
    """Implements `network.Network`. Must be made, used and closed in one running event loop."""

    def __init__(
        self,
        protocol: Fingerprint,
        transport: Transport,
        *,
        clock: Callable[[], int] = time.time_ns,
        draw_session: Callable[[], int] = draw_session,
    ) -> None:
        self._protocol = protocol
        self._transport = transport
        self._clock = clock
        self._draw_session = draw_session
        self._ports: list[RouterServer | DealerLink] = []
        self._others: list[Tally] = []

    @property
    def tallies(self) -> Collection[Tally]:
        """See `network.Network`."""
        return [*self._transport.tallies, *self._others]

    def count(self, tally: Tally) -> None:
        """Has a socket that is not one of its own among its tallies."""
        self._others.append(tally)

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
    ) -> RouterServer:
        """See `network.Network`."""
        handshake = partial(
            ServerHandshake, identity, self._protocol, admits=admits, draw_session=self._draw_session, topic=topic
        )
        server = RouterServer(
            self._transport,
            address,
            handshake=handshake,
            mailbox=mailbox,
            inbox=inbox,
            admits=admits,
            one_way=one_way or {},
            clock=self._clock,
        )
        self._ports.append(server)
        return server

    def connect(
        self,
        address: str,
        *,
        peer: str,
        identity: Identity,
        mailbox: Mailbox[Any],
        inbox: Any,
        peer_role: str | None = None,
    ) -> DealerLink:
        """See `network.Network`."""
        link = DealerLink(
            self._transport,
            address,
            identity.route,
            peer_role=peer_role or role_of(peer),
            handshake=ClientHandshake(identity, self._protocol, peer),
            mailbox=mailbox,
            inbox=inbox,
            clock=self._clock,
        )
        self._ports.append(link)
        return link

    async def close(self, flush_s: float = FLUSH_S) -> None:
        """See `network.Network`."""
        for port in self._ports:
            port.close(flush_s)
        self._ports.clear()
        await self._transport.close()
