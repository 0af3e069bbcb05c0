"""Strangers at ZeroMQ sockets: whatever they send is dropped and counted, and everybody else goes on as before."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import zmq
from runtime_world import PROTOCOL, Blob, Ping, Pong, Side, World, connect, identity, mailbox, pair, serve, take, until

from actorlm.runtime.codec import MAX_MESSAGE_BYTES
from actorlm.runtime.errors import AddressUnusable, MessageTooLarge
from actorlm.runtime.events import LinkRefused, LinkUp
from actorlm.runtime.fingerprint import fingerprint
from actorlm.runtime.handshake import Hello, Welcome
from actorlm.runtime.header import Header, Kind
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.zeromq import ZeroMQNetwork

PICKLE = b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."
CALL = b"cposix\nsystem\n(S'true'\ntR."
RANDOM = random.Random(4)


def header(kind: int = Kind.MESSAGE, session: int = 77, sequence: int = 1, **fields: int) -> bytes:
    return Header(kind, session, sequence, 0, **fields).encode()  # type: ignore[arg-type]


def hello(**changes: object) -> bytes:
    fields = {
        "protocol": PROTOCOL.version,
        "fingerprint": PROTOCOL.digest,
        "structs": PROTOCOL.digests,
        "role": "client",
        "name": "client-9",
        "incarnation": 1,
        "host": "host",
        "pid": 1,
    }
    return msgspec.msgpack.encode(["Hello", *(fields | changes).values()])


PING = msgspec.msgpack.encode(Ping(1))
HOSTILE: dict[str, list[bytes]] = {
    "empty": [b""],
    "two empty": [b"", b""],
    "one byte": [b"\x01"],
    "pickle": [PICKLE],
    "pickle after an empty frame": [b"", CALL],
    "three pickles": [CALL, PICKLE, CALL],
    "header alone": [header()],
    "header and pickle": [header(), PICKLE],
    "header and random": [header(), RANDOM.randbytes(2000)],
    "random header": [RANDOM.randbytes(24), PING],
    "long header": [header() + b"\0", PING],
    "right struct, unknown session": [header(), PING],
    "session 0": [header(session=0), PING],
    "largest numbers": [header(session=2**32 - 1, sequence=2**64 - 1), PING],
    "kind 0": [header(kind=0), PING],
    "kind 255": [header(kind=255), PING],
    "another version": [header(version=2), PING],
    "flags": [header(flags=1), PING],
    "too many frames": [header(), PING, PING],
    "ten thousand frames": [header()] + [b"x"] * 10_000,
    "deep nesting": [header(kind=Kind.HELLO), b"\x91" * 60_000],
    "deep nesting in a field": [header(kind=Kind.HELLO), b"\x99\xa5Hello" + b"\x91" * 60_000],
    "huge declared length": [header(kind=Kind.HELLO), b"\xdd\xff\xff\xff\xff"],
    "huge hello": [header(kind=Kind.HELLO), b"\xc1" * 100_000],
    "hello without body": [header(kind=Kind.HELLO)],
    "hello of wrong types": [header(kind=Kind.HELLO), msgspec.msgpack.encode(["Hello"] + [None] * 8)],
    "hello with an extension type": [header(kind=Kind.HELLO), msgspec.msgpack.encode(msgspec.msgpack.Ext(4, b"x"))],
    "hello of another version": [header(kind=Kind.HELLO, version=9), hello()],
    "hello from a route of its own": [header(kind=Kind.HELLO), hello()],
    "hello of a role that is not admitted": [header(kind=Kind.HELLO), hello(role="worker")],
    "hello with a name that breaks a log": [header(kind=Kind.HELLO), hello(name="a\nb\x1b[31m")],
    "hello with another fingerprint": [header(kind=Kind.HELLO), hello(fingerprint="x", structs={})],
    "welcome to a server": [header(kind=Kind.WELCOME), msgspec.msgpack.encode(Welcome(1, {}, b""))],
    "http": [b"GET / HTTP/1.1\r\n\r\n"],
}


@pytest_asyncio.fixture
async def raw() -> AsyncIterator[Callable[..., zmq.Socket[bytes]]]:
    """Opens plain sockets, as a stranger would."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def open_socket(kind: int, **options: object) -> zmq.Socket[bytes]:
        socket = context.socket(kind)
        socket.set(zmq.LINGER, 0)
        for name, value in options.items():
            socket.set(getattr(zmq, name), value)
        return socket

    yield open_socket
    context.destroy()


def dropped(side: Side, socket: str) -> int:
    return sum(sum(tally.dropped.values()) for tally in side.network.tallies if tally.socket.startswith(socket))


def received(side: Side, socket: str) -> int:
    return sum(tally.received for tally in side.network.tallies if tally.socket.startswith(socket))


async def exchange(server: Side, client: Side) -> None:
    """The sentinel: a normal exchange on every kind of socket."""
    client.send(Ping(1))
    client.port.pusher("steps").send(Ping(2))
    assert sorted(message.number for _, message in await server.take(2)) == [1, 2]
    server.send("client-0", Pong(3))
    assert await client.take() == [("server-0", Pong(3))]


@pytest.mark.parametrize("kind", ["router", "pull"])
async def test_e04_garbage_on_a_bound_socket(wire: World, raw: Callable[..., zmq.Socket[bytes]], kind: str) -> None:
    server, client = await pair(wire, server={"one_way": {"steps": wire.address()}})
    await exchange(server, client)
    stranger = raw(zmq.DEALER if kind == "router" else zmq.PUSH)
    stranger.connect(server.port.address if kind == "router" else server.port.one_way["steps"])
    for name, frames in HOSTILE.items():
        before, seen = dropped(server, kind), received(server, kind)
        stranger.send_multipart(frames)
        await until(lambda seen=seen: received(server, kind) > seen)
        assert dropped(server, kind) == before + 1, name
        assert server.box.depth == 0, name
        await exchange(server, client)
    assert set(server.port.peers) == {"client-0"}


async def test_e04_a_thousand_junk_frames(wire: World, raw: Callable[..., zmq.Socket[bytes]]) -> None:
    server, client = await pair(wire, server={"one_way": {"steps": wire.address()}})
    dealer, push = raw(zmq.DEALER), raw(zmq.PUSH)
    dealer.connect(server.port.address)
    push.connect(server.port.one_way["steps"])
    for _ in range(1000):
        junk = RANDOM.randbytes(RANDOM.randrange(1, 60))
        dealer.send(junk)
        push.send(junk)
    await until(lambda: dropped(server, "router") == dropped(server, "pull") == 1000)
    await exchange(server, client)


async def test_e04_a_message_above_the_limit_ends_only_its_own_connection(
    wire: World, raw: Callable[..., zmq.Socket[bytes]]
) -> None:
    server, client = await pair(wire, server={"one_way": {"steps": wire.address()}})
    for kind, address in ((zmq.DEALER, server.port.address), (zmq.PUSH, server.port.one_way["steps"])):
        stranger = raw(kind)
        monitor = stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        stranger.connect(address)
        stranger.send_multipart([header(), bytes(MAX_MESSAGE_BYTES + 1)])
        await until(lambda monitor=monitor: monitor.poll(0))
        stranger.close()
    assert dropped(server, "") == 0
    await exchange(server, client)


async def test_a_message_above_the_limit_is_an_error_of_its_sender(wire: World) -> None:
    network = ZeroMQNetwork(PROTOCOL, max_bytes=1000)
    wire.networks.append(network)
    server = serve(wire)
    box = mailbox()
    link = network.connect(server.port.address, peer="server-0", identity=identity(), mailbox=box, inbox=Pong)
    await take(box)
    with pytest.raises(MessageTooLarge, match="Blob"):
        link.send(Blob(bytes(2000)))
    link.send(Ping(1))
    assert (await server.take(2))[1] == ("client-0", Ping(1))


async def test_e04_half_a_handshake_and_plain_http(tmp_path: object) -> None:
    world = World("tcp", tmp_path)  # type: ignore[arg-type]
    server, client = await pair(world, server={"one_way": {"steps": world.address()}})
    port = int(server.port.address.rpartition(":")[2])
    for greeting in (b"\xff\0\0\0\0\0\0\0\1\x7f\3", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(greeting)
        await writer.drain()
        await exchange(server, client)
        writer.close()
        del reader
    await world.close()


async def test_e04_garbage_from_a_server_at_a_client(wire: World, raw: Callable[..., zmq.Socket[bytes]]) -> None:
    address = wire.address()
    client = connect(wire, address)
    rogue = raw(zmq.ROUTER)
    rogue.bind(address)
    await until(lambda: rogue.poll(0))
    route, *_ = rogue.recv_multipart()
    assert route == b"client-0/1"
    hostile = [frames for name, frames in HOSTILE.items() if name != "welcome to a server"]
    for frames in hostile:
        rogue.send_multipart([route, *frames])
    rogue.send_multipart([route, header(kind=Kind.WELCOME, sequence=9), msgspec.msgpack.encode(Welcome(5, {}, b""))])
    rogue.send_multipart([route, header(kind=Kind.WELCOME), b"\xc1"])
    await until(lambda: dropped(client, "dealer") == len(hostile) + 1)
    assert not client.port.is_up
    assert client.box.depth == 0
    rogue.send_multipart([route, header(kind=Kind.WELCOME), msgspec.msgpack.encode(Welcome(5, {}, b""))])
    assert await client.take() == [("server-0", LinkUp("server-0"))]
    rogue.send_multipart([route, header(session=5), msgspec.msgpack.encode(Pong(1))])
    assert await client.take() == [("server-0", Pong(1))]


async def test_messages_that_were_lost_start_a_new_session(wire: World, raw: Callable[..., zmq.Socket[bytes]]) -> None:
    address = wire.address()
    client = connect(wire, address)
    rogue = raw(zmq.ROUTER)
    rogue.bind(address)

    async def next_hello() -> tuple[bytes, int]:
        await until(lambda: rogue.poll(0))
        route, head, body = rogue.recv_multipart()
        assert msgspec.msgpack.decode(body, type=Hello).name == "client-0"
        return route, int.from_bytes(head[8:16], "little")

    route, attempt = await next_hello()
    assert attempt == 1
    rogue.send_multipart([route, header(kind=Kind.WELCOME), msgspec.msgpack.encode(Welcome(5, {}, b""))])
    rogue.send_multipart([route, header(session=5, sequence=1), msgspec.msgpack.encode(Pong(1))])
    rogue.send_multipart([route, header(session=5, sequence=3), msgspec.msgpack.encode(Pong(3))])
    assert [message for _, message in await client.take(2)] == [LinkUp("server-0"), Pong(1)]
    while attempt == 1:
        route, attempt = await next_hello()
    assert attempt == 2
    assert not client.port.is_up
    assert client.dropped == {"SequenceGap": 1}


async def test_lost_one_way_messages_start_a_new_session(wire: World, raw: Callable[..., zmq.Socket[bytes]]) -> None:
    server, client = await pair(wire, server={"one_way": {"steps": wire.address()}})
    push = raw(zmq.PUSH)
    push.connect(server.port.one_way["steps"])
    push.send_multipart([header(session=client.port.welcome.session, sequence=2), PING])
    assert await client.take() == [("server-0", LinkUp("server-0"))]
    assert len(await server.take()) == 1
    await exchange(server, client)


async def test_a_session_does_not_serve_another_route(wire: World, raw: Callable[..., zmq.Socket[bytes]]) -> None:
    server, client = await pair(wire, server={"one_way": {"steps": wire.address()}})
    thief = raw(zmq.DEALER)
    thief.connect(server.port.address)
    thief.send_multipart([header(session=client.port.welcome.session), PING])
    await until(lambda: dropped(server, "router") == 1)
    assert server.box.depth == 0
    await exchange(server, client)


async def test_a_client_of_another_header_version_is_refused(
    wire: World, raw: Callable[..., zmq.Socket[bytes]]
) -> None:
    server = serve(wire)
    other = raw(zmq.DEALER)
    other.connect(server.port.address)
    other.send_multipart([header(kind=Kind.HELLO, version=2), b"whatever version 2 says"])
    await until(lambda: other.poll(0))
    head, body = other.recv_multipart()
    assert head[1] == Kind.REFUSED
    assert b"header version 2" in body


async def test_a_client_learns_that_its_server_has_another_header_version(
    wire: World, raw: Callable[..., zmq.Socket[bytes]]
) -> None:
    address = wire.address()
    client = connect(wire, address)
    other = raw(zmq.ROUTER)
    other.bind(address)
    await until(lambda: other.poll(0))
    route, *_ = other.recv_multipart()
    other.send_multipart([route, header(kind=Kind.REFUSED, version=2), b"whatever version 2 says"])
    [(_, event)] = await client.take()
    assert isinstance(event, LinkRefused)
    assert "header version 2" in event.reason


async def test_a14_port_0_is_published_as_the_real_one(tmp_path: object) -> None:
    world = World("tcp", tmp_path)  # type: ignore[arg-type]
    server, client = await pair(world, server={"one_way": {"steps": "tcp://127.0.0.1:0"}})
    assert not server.port.address.endswith(":0")
    assert client.port.welcome.one_way["steps"].startswith("tcp://127.0.0.1:")
    await exchange(server, client)
    await world.close()


@pytest.mark.parametrize(
    "address", ["ipc:///nowhere/at/all/socket", "ipc:///tmp/" + "x" * 120, "tcp://nonsense", "udp"]
)
async def test_an_address_that_cannot_be_bound_is_named(wire: World, address: str) -> None:
    with pytest.raises(AddressUnusable, match=address):
        serve(wire, address)


async def test_a_paused_port_does_not_keep_the_loop_busy(wire: World) -> None:
    class WatchedMailbox(Mailbox[Any]):
        looks = 0

        @property
        def pauses_ports(self) -> bool:
            self.looks += 1
            return super().pauses_ports

    box = WatchedMailbox("small", 4, Overflow.PAUSE)
    server, client = await pair(wire, server={"box": box})
    for number in range(500):
        client.send(Ping(number))
    await until(lambda: box.depth == 4)
    await asyncio.sleep(0.01)
    looks = box.looks
    others = [connect(wire, server.port.address, identity=identity(f"client-{n}")) for n in (1, 2, 3)]
    for number in range(100):
        client.send(Ping(number))
        await asyncio.sleep(0.001)
    assert box.looks == looks
    assert len(await server.take(603)) == 603
    assert all(other.port.is_up for other in others)


async def test_each_kind_of_error_is_logged_once(wire: World, raw: Callable[..., zmq.Socket[bytes]]) -> None:
    from structlog.testing import capture_logs

    server = serve(wire)
    stranger = raw(zmq.DEALER)
    stranger.connect(server.port.address)
    with capture_logs() as logs:
        for _ in range(50):
            stranger.send(b"x")
            stranger.send_multipart([header(), PING])
        await until(lambda: dropped(server, "router") == 100)
    assert sorted(line["kind"] for line in logs) == ["BadHeader", "UnknownSession"]


async def test_a_server_of_another_protocol_version_names_both(wire: World) -> None:
    server = serve(wire)
    client = connect(wire, server.port.address, protocol=fingerprint({"server": Ping}, version=2))
    [(_, event)] = await client.take()
    assert isinstance(event, LinkRefused)
    assert "protocol version 2 meets 1" in event.reason
