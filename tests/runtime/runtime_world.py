"""Messages, identities and mailboxes for the tests of the runtime, and a world of networks over each transport."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from actorlm.keys import KeyPair, KnownKey
from actorlm.runtime.curve import NO_KEYS, Keyring, Security
from actorlm.runtime.events import LinkRefused, LinkUp, PeerJoined
from actorlm.runtime.fingerprint import fingerprint
from actorlm.runtime.identity import Identity
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.memory import Exchange, MemoryNetwork
from actorlm.runtime.ports import TransportNetwork
from actorlm.runtime.zeromq import ZeroMQNetwork
from actorlm.wire import Int32, Message


class Ping(Message):
    number: int


class Row(Message):
    ids: Int32


class Rows(Message):
    rows: tuple[Row, ...]


class Pong(Message):
    number: int


class Blob(Message):
    data: bytes


ServerInbox = Ping | Row | Rows | Blob
ClientInbox = Pong | Blob
PROTOCOL = fingerprint({"server": ServerInbox, "client": ClientInbox}, version=1)


def identity(name: str = "client-0", *, role: str = "client", incarnation: int = 1) -> Identity:
    return Identity(role, name, incarnation, "host", 1)


def mailbox(name: str = "box", capacity: int = 1000, overflow: Overflow = Overflow.PAUSE) -> Mailbox[Any]:
    return Mailbox(name, capacity, overflow)


async def until(condition: Callable[[], Any], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.002)


async def take(box: Mailbox[Any], count: int = 1, timeout_s: float = 10.0) -> list[tuple[str, Message]]:
    """The next `count` envelopes."""
    taken: list[tuple[str, Message]] = []
    async with asyncio.timeout(timeout_s):
        while len(taken) < count:
            taken += await box.drain(count - len(taken))
    return taken


class Keys:
    """Stands for a KeyDirectory: a pair for each role of these tests. `known` and `states` may be changed."""

    path = Path("/keys")

    def __init__(self, *roles: str) -> None:
        self.pairs = {role: make_pair(role) for role in roles}
        self.publics = {pair.public: KnownKey(role, role) for role, pair in self.pairs.items()}
        self.states = 0

    def own(self, role: str) -> KeyPair:
        return self.pairs[role]

    def of_server(self, role: str) -> str:
        return self.pairs[role].public

    def known(self) -> dict[str, KnownKey]:
        return dict(self.publics)

    def state(self) -> int:
        return self.states


def make_pair(role: str) -> KeyPair:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    return KeyPair(role, public, secret)


class World:
    """One transport: networks that can reach each other, and addresses to meet at. `curve` is tcp with keys."""

    def __init__(self, transport: str, directory: Path) -> None:
        self.transport = transport
        self.networks: list[TransportNetwork] = []
        self._directory = directory
        self._exchange = Exchange()
        self._addresses = 0
        self.keys = Keys("server", "client")

    def network(self, *, role: str = "client", protocol: Any = PROTOCOL, high_water: int = 1000) -> TransportNetwork:
        if self.transport == "memory":
            network: TransportNetwork = MemoryNetwork(protocol, self._exchange, high_water=high_water)
        else:
            security = Security(Keyring(self.keys, role)) if self.transport == "curve" else NO_KEYS
            network = ZeroMQNetwork(protocol, high_water=high_water, security=security)
        self.networks.append(network)
        return network

    def address(self) -> str:
        if self.transport in ("tcp", "curve"):
            return "tcp://127.0.0.1:0"
        self._addresses += 1
        return f"ipc://{self._directory}/{self._addresses}"

    async def close(self) -> None:
        for network in self.networks:
            await network.close(flush_s=0)


class Side:
    """A port with its mailbox."""

    def __init__(self, port: Any, box: Mailbox[Any], network: TransportNetwork) -> None:
        self.port = port
        self.box = box
        self.network = network

    def send(self, *arguments: Any) -> None:
        self.port.send(*arguments)

    async def take(self, count: int = 1) -> list[tuple[str, Message]]:
        return await take(self.box, count)

    @property
    def dropped(self) -> dict[str, int]:
        return {kind: n for tally in self.network.tallies for kind, n in tally.dropped.items()}


def serve(world: World, address: str | None = None, **options: Any) -> Side:
    network = world.network(
        role="server", protocol=options.pop("protocol", PROTOCOL), high_water=options.pop("high_water", 1000)
    )
    box = options.pop("box", None) or mailbox("server")
    options = {"identity": identity("server-0", role="server"), "admits": {"client"}, "inbox": ServerInbox} | options
    return Side(network.serve(address or world.address(), mailbox=box, **options), box, network)


def connect(world: World, address: str, **options: Any) -> Side:
    network = world.network(protocol=options.pop("protocol", PROTOCOL), high_water=options.pop("high_water", 1000))
    box = options.pop("box", None) or mailbox("client")
    options = {"identity": identity(), "peer": "server-0", "inbox": ClientInbox} | options
    return Side(network.connect(address, mailbox=box, **options), box, network)


async def pair(
    world: World, *, server: dict[str, Any] | None = None, client: dict[str, Any] | None = None
) -> tuple[Side, Side]:
    """A server and a client that have shaken hands."""
    serving = serve(world, **(server or {}))
    link = connect(world, serving.port.address, **(client or {}))
    assert await serving.take() == [("client-0", PeerJoined("client-0", "client", 1))]
    assert await link.take() == [("server-0", LinkUp("server-0"))]
    return serving, link


async def refusal(link: Side) -> str:
    [(sender, event)] = await link.take()
    assert isinstance(event, LinkRefused)
    assert sender == event.peer == "server-0"
    return event.reason
