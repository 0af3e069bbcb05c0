"""The network inside of one process: the same ports, handshakes, bounds and errors, without bytes.

Messages pass by reference, which is safe because they are immutable. An Exchange is the space of addresses;
networks of different actors in one event loop share one.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from functools import partial

from actorlm.runtime.errors import AddressUnusable, NotConnected, PeerFull, PeerUnknown
from actorlm.runtime.fingerprint import Fingerprint
from actorlm.runtime.header import Header
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.ports import TransportNetwork
from actorlm.runtime.reading import Reader
from actorlm.runtime.tally import Tallies, Tally
from actorlm.runtime.transport import Connection, Receive, Refusal
from actorlm.wire import Message

HIGH_WATER = 1000


class MemoryNetwork(TransportNetwork):
    """See `network.Network`. `high_water` bounds each direction of each connection, in messages."""

    def __init__(
        self, protocol: Fingerprint, exchange: "Exchange | None" = None, *, high_water: int = HIGH_WATER
    ) -> None:
        super().__init__(protocol, MemoryTransport(exchange or Exchange(), high_water))


class MemoryTransport:
    """Implements `transport.Transport`."""

    def __init__(self, exchange: "Exchange", high_water: int) -> None:
        self._tallies = Tallies()
        self._exchange = exchange
        self._high_water = high_water

    @property
    def tallies(self) -> Collection[Tally]:
        """See `transport.Transport`."""
        return self._tallies.all()

    def listen(
        self, address: str, mailbox: Mailbox[object], receive: Receive, admits: Collection[str] = ()
    ) -> "BoundSocket":
        """See `transport.Transport`."""
        inlet = Inlet(mailbox, self._tallies.of("router", address), self._high_water, receive)
        return BoundSocket(self._exchange, address, inlet)

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
    ) -> "DialledSocket":
        """See `transport.Transport`."""
        inlet = Inlet(mailbox, tally := self._tallies.of("dealer", address), self._high_water, receive)
        return DialledSocket(self._exchange, address, tally, route=route, inlet=inlet, connection=connection)

    def pull(
        self, address: str, mailbox: Mailbox[object], receive: Receive, admits: Collection[str] = ()
    ) -> "BoundSocket":
        """See `transport.Transport`."""
        return BoundSocket(
            self._exchange, address, Inlet(mailbox, self._tallies.of("pull", address), self._high_water, receive)
        )

    def push(self, address: str, server_role: str = "") -> "DialledSocket":
        """See `transport.Transport`."""
        return DialledSocket(self._exchange, address, self._tallies.of("push", address))

    async def close(self) -> None:
        """See `transport.Transport`."""


class Exchange:
    """Where sockets find each other by address, whoever comes first."""

    def __init__(self) -> None:
        self._bound: dict[str, BoundSocket] = {}
        self._dialling: dict[str, list[DialledSocket]] = {}

    def bind(self, address: str, socket: "BoundSocket") -> None:
        """Gives the address to `socket`, and to it all that wait for the address. Raises AddressUnusable if taken."""
        if address in self._bound:
            raise AddressUnusable(f"{address} cannot be bound: it is in use")
        self._bound[address] = socket
        for dialled in self._dialling.get(address, []):
            dialled.meet(socket)

    def unbind(self, address: str) -> None:
        """Frees the address and cuts its connections."""
        del self._bound[address]
        for dialled in self._dialling.get(address, []):
            dialled.part()

    def dial(self, address: str, socket: "DialledSocket") -> None:
        """Connects `socket` now, and whenever the address is bound anew."""
        self._dialling.setdefault(address, []).append(socket)
        if (bound := self._bound.get(address)) is not None:
            socket.meet(bound)

    def hang_up(self, address: str, socket: "DialledSocket") -> None:
        """Forgets a dialling socket."""
        self._dialling[address].remove(socket)
        if not self._dialling[address]:
            del self._dialling[address]


class Pipe:
    """One direction of one connection: a bounded queue of deliveries that wakes the socket that reads it."""

    def __init__(self, capacity: int, wake: Callable[[], None], receive: Receive, route: bytes) -> None:
        self._capacity = capacity
        self._wake = wake
        self._receive = receive
        self._route = route
        self._deliveries: deque[Callable[[], None]] = deque()
        self.ended = False

    def offer(self, header: Header, message: Message | None) -> None:
        """Adds a message, or raises PeerFull."""
        if len(self._deliveries) >= self._capacity:
            raise PeerFull(f"the queue towards the peer holds {self._capacity} messages")
        self._deliveries.append(partial(self._receive, self._route, header, message, ""))
        self._wake()

    def take(self) -> Callable[[], None] | None:
        """The next delivery, if there is one."""
        return self._deliveries.popleft() if self._deliveries else None


class Inlet:
    """All pipes into one socket, read in turn."""

    def __init__(self, mailbox: Mailbox[object], tally: Tally, capacity: int, receive: Receive) -> None:
        self.tally = tally
        self._capacity = capacity
        self._receive = receive
        self._pipes: deque[Pipe] = deque()
        self._reader = Reader(mailbox, tally, self._take, watch=lambda _wanted: None)

    def open(self, route: bytes = b"") -> Pipe:
        """A new pipe, whose messages come from `route`."""
        pipe = Pipe(self._capacity, self._reader.schedule, self._receive, route)
        self._pipes.append(pipe)
        return pipe

    def close(self) -> None:
        """Reads nothing from now on."""
        self._reader.close()

    def _take(self) -> bool:
        for _ in range(len(self._pipes)):
            pipe = self._pipes.popleft()
            delivery = pipe.take()
            if delivery is not None or not pipe.ended:
                self._pipes.append(pipe)
            if delivery is not None:
                self.tally.received += 1
                delivery()
                return True
        return False


class BoundSocket:
    """Implements `transport.Socket`: a router or a pull socket."""

    def __init__(self, exchange: Exchange, address: str, inlet: Inlet) -> None:
        self.address = address
        self._exchange = exchange
        self._inlet = inlet
        self._routes: dict[bytes, Pipe] = {}
        exchange.bind(address, self)

    def accept(self, route: bytes, back: Pipe | None) -> Pipe:
        """A new connection: `back`, if there is one, leads to the peer; the pipe returned leads here."""
        if back is not None:
            self._routes[route] = back
        return self._inlet.open(route)

    def cut(self, back: Pipe | None) -> None:
        """The connection to which `back` belongs has ended."""
        self._routes = {route: pipe for route, pipe in self._routes.items() if pipe is not back}

    def send(self, header: Header, message: Message | None, route: bytes = b"") -> None:
        """See `transport.Socket`."""
        pipe = self._routes.get(route)
        if pipe is None:
            raise PeerUnknown(f"nobody is connected to {self.address} as {route.decode(errors='replace')}")
        pipe.offer(header, message)
        self._inlet.tally.sent += 1

    def close(self, _flush_s: float) -> None:
        """See `transport.Socket`. What was sent is in the peers' queues already."""
        self._inlet.close()
        self._exchange.unbind(self.address)


class DialledSocket:
    """Implements `transport.Socket`: a dealer if it has an inlet, else a push socket."""

    def __init__(
        self,
        exchange: Exchange,
        address: str,
        tally: Tally,
        *,
        route: bytes = b"",
        inlet: Inlet | None = None,
        connection: Connection = lambda _made: None,
    ) -> None:
        self.address = address
        self._exchange = exchange
        self._tally = tally
        self._route = route
        self._inlet = inlet
        self._connection = connection
        self._bound: BoundSocket | None = None
        self._forth: Pipe | None = None
        self._back: Pipe | None = None
        exchange.dial(address, self)

    def meet(self, bound: BoundSocket) -> None:
        """The address has been bound."""
        self._bound = bound
        self._back = self._inlet.open() if self._inlet is not None else None
        self._forth = bound.accept(self._route, self._back)
        asyncio.get_running_loop().call_soon(self._connection, True)

    def part(self) -> None:
        """The connection ended. What either side has received already is still read."""
        for pipe in (self._forth, self._back):
            if pipe is not None:
                pipe.ended = True
        self._bound = self._forth = self._back = None
        self._connection(False)

    def send(self, header: Header, message: Message | None, _route: bytes = b"") -> None:
        """See `transport.Socket`."""
        if self._forth is None:
            raise NotConnected(f"nobody has bound {self.address}")
        self._forth.offer(header, message)
        self._tally.sent += 1

    def close(self, _flush_s: float) -> None:
        """See `transport.Socket`."""
        if self._bound is not None:
            self._bound.cut(self._back)
        self.part()
        if self._inlet is not None:
            self._inlet.close()
        self._exchange.hang_up(self.address, self)
