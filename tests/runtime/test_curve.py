"""Who may connect where there are keys: by key and role, on every kind of socket that listens."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import zmq
from runtime_world import (
    PROTOCOL,
    Blob,
    Keys,
    Ping,
    ServerInbox,
    World,
    connect,
    identity,
    mailbox,
    make_pair,
    refusal,
    serve,
    until,
)
from zmq.utils.monitor import recv_monitor_message

from actorlm.errors import ConfigError
from actorlm.keys import KnownKey
from actorlm.runtime.broadcast import Publisher, Subscriber
from actorlm.runtime.curve import NO_KEYS, Gate, Keyring, Security
from actorlm.runtime.events import LinkUp
from actorlm.runtime.tally import Tally
from actorlm.runtime.zeromq import ZeroMQNetwork

TOPIC = b"0123456789abcdef"
SOCKETS = {"router": zmq.DEALER, "pull": zmq.PUSH, "xpub": zmq.SUB}
ANYWHERE = "tcp://127.0.0.1:0"


@pytest.fixture
def keys() -> Keys:
    """Of servers, of clients that they admit, and of strangers, whom they do not."""
    return Keys("server", "client", "stranger")


@pytest.fixture
async def listening(keys: Keys) -> Any:
    """Every kind of socket that listens, with its tally, by kind. All admit clients alone."""
    security = Security(Keyring(keys, "server"))
    network = ZeroMQNetwork(PROTOCOL, security=security)
    box = mailbox("server")
    server = network.serve(
        ANYWHERE,
        identity=identity("server-0", role="server"),
        mailbox=box,
        inbox=ServerInbox,
        admits={"client"},
        one_way={"steps": ANYWHERE},
    )
    publisher: Publisher[Ping] = Publisher(
        ANYWHERE, epoch=1, topic=TOPIC, inbox=Ping | Blob, security=security, admits={"client"}
    )
    yield SimpleNamespace(
        network=network,
        addresses={"router": server.address, "pull": server.one_way["steps"], "xpub": publisher.address},
        tallies=lambda: [*network.tallies, publisher.tally],
    )
    publisher.close()
    await network.close(flush_s=0)


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    one: zmq.Context[Any] = zmq.Context()
    yield one
    one.destroy(linger=0)


def no_keys(socket: Any, keys: Keys) -> None:
    """As whoever knows nothing of them."""


def plain(socket: Any, keys: Keys) -> None:
    socket.plain_username, socket.plain_password = b"client", b"client"


def with_key(role: str, server: str = "server") -> Any:
    def curve(socket: Any, keys: Keys) -> None:
        pair = keys.pairs[role] if role in keys.pairs else make_pair(role)
        socket.curve_publickey, socket.curve_secretkey = pair.public.encode(), pair.secret.encode()
        socket.curve_serverkey = keys.pairs[server].public.encode()

    return curve


def comes_in(context: Any, kind: int, address: str, keys: Keys, prepare: Any) -> bool:
    """Whether a socket of this kind that was prepared so gets through the handshake."""
    with context.socket(kind) as socket:
        socket.linger = 0
        prepare(socket, keys)
        events = socket.get_monitor_socket()
        socket.connect(address)
        ended = False
        for _ in range(100):
            if events.poll(20):
                event = recv_monitor_message(events)["event"]
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    ended = True
                    break
                if event in (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL):
                    break
                if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and prepare is not no_keys:
                    break
        socket.disable_monitor()
        events.close()
        return ended


REFUSED = {
    "no key": no_keys,
    "PLAIN": plain,
    "an unknown key": with_key("unknown"),
    "a key of another role": with_key("stranger"),
    "the server's own key": with_key("server"),
    "another key for the server": with_key("client", server="stranger"),
}


@pytest.mark.parametrize("kind", SOCKETS)
@pytest.mark.parametrize("who", REFUSED)
async def test_who_does_not_belong_is_refused_on_every_socket(
    listening: Any, keys: Keys, context: Any, kind: str, who: str
) -> None:
    address = listening.addresses[kind]
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            assert not await asyncio.to_thread(comes_in, context, SOCKETS[kind], address, keys, REFUSED[who])
        await until(lambda: sum(tally.refused for tally in listening.tallies()) >= 2)
    told = [line for line in lines if line["event"].startswith("connection refused")]
    assert 1 <= len(told) <= 2  # who does not speak CURVE may leave before it is heard out
    assert {line["socket"].split()[0] for line in told} == {kind}
    assert not any(pair.secret in str(lines) for pair in keys.pairs.values())


@pytest.mark.parametrize("kind", SOCKETS)
async def test_who_belongs_comes_in_everywhere(listening: Any, keys: Keys, context: Any, kind: str) -> None:
    address = listening.addresses[kind]
    assert await asyncio.to_thread(comes_in, context, SOCKETS[kind], address, keys, with_key("client"))
    assert sum(tally.refused for tally in listening.tallies()) == 0


@pytest.fixture
async def curve(tmp_path: Path) -> Any:
    world = World("curve", tmp_path)
    world.keys = Keys("server", "client", "stranger")
    yield world
    await world.close()


async def test_a_hello_must_be_of_the_keys_role(curve: World) -> None:
    server = serve(curve, admits={"client", "stranger"})
    liar = connect(curve, server.port.address, identity=identity("stranger-0", role="stranger"))
    assert "role stranger comes with a key of role client" in await refusal(liar)


async def test_a_hello_must_have_a_name_of_the_keys_role(curve: World) -> None:
    server = serve(curve, admits={"client", "stranger"})
    liar = connect(curve, server.port.address, identity=identity("stranger-0", role="client"))
    assert "the name stranger-0 comes with a key of role client" in await refusal(liar)


async def test_a_link_that_is_refused_is_told_so_and_goes_on_to_try(curve: World) -> None:
    server = serve(curve)
    known = curve.keys.publics.pop(curve.keys.pairs["client"].public)
    curve.keys.states += 1
    client = connect(curve, server.port.address)
    assert "refuses our key" in await refusal(client)
    curve.keys.publics[curve.keys.pairs["client"].public] = known
    curve.keys.states += 1
    assert await client.take() == [("server-0", LinkUp("server-0"))]


async def test_a_key_that_was_removed_counts_until_the_connection_ends(curve: World) -> None:
    server = serve(curve)
    client = connect(curve, server.port.address)
    assert await client.take() == [("server-0", LinkUp("server-0"))]
    del curve.keys.publics[curve.keys.pairs["client"].public]
    curve.keys.states += 1
    client.send(Ping(1))
    assert len(await server.take(2)) == 2
    again = connect(curve, server.port.address, identity=identity("client-1"))
    assert "refuses our key" in await refusal(again)


async def test_while_keys_cannot_be_read_nobody_comes_in_and_nobody_is_sent_away(
    curve: World, monkeypatch: Any
) -> None:
    server = serve(curve)

    def unreadable(*_: object) -> KnownKey:
        raise ConfigError("/keys/public: Permission denied")

    monkeypatch.setattr("actorlm.runtime.zeromq.HANDSHAKE_MS", 200)
    monkeypatch.setattr(Keyring, "find", unreadable)
    client = connect(curve, server.port.address)
    await until(lambda: sum(tally.refused for tally in server.network.tallies) > 0)
    assert client.box.depth == 0
    monkeypatch.undo()
    assert await client.take() == [("server-0", LinkUp("server-0"))]


@pytest.mark.parametrize("has_keys", ["server", "client"])
async def test_keys_on_one_side_alone_are_a_refusal(tmp_path: Path, has_keys: str) -> None:
    worlds = {kind: World(kind, tmp_path) for kind in ("curve", "tcp")}
    server = serve(worlds["curve" if has_keys == "server" else "tcp"])
    client = connect(worlds["tcp" if has_keys == "server" else "curve"], server.port.address)
    assert "one has keys and the other has none" in await refusal(client)
    for world in worlds.values():
        await world.close()


async def test_a_server_with_another_key_is_not_believed(curve: World) -> None:
    server = serve(curve)
    curve.keys.pairs["server"], kept = make_pair("server"), curve.keys.pairs["server"]
    client = connect(curve, server.port.address)
    await until(lambda: sum(tally.refused for tally in server.network.tallies) > 1)
    assert client.box.depth == 0
    assert kept.public != curve.keys.pairs["server"].public


def test_a_broadcast_loses_nothing(keys: Keys) -> None:
    publisher: Publisher[Ping] = Publisher(
        ANYWHERE, epoch=3, topic=TOPIC, inbox=Ping | Blob, security=Security(Keyring(keys, "server")), admits={"client"}
    )
    count, received = 2000, []

    def follow() -> None:
        subscriber: Subscriber[Ping] = Subscriber(
            publisher.address,
            epoch=3,
            topic=TOPIC,
            inbox=Ping | Blob,
            security=Security(Keyring(keys, "client")),
            server_role="server",
        )
        while (message := subscriber.receive(20)) is not None and message.number <= count:
            received.append(message.number)
            arrived.release()
        subscriber.close()

    arrived = threading.Semaphore(0)
    thread = threading.Thread(target=follow)
    thread.start()
    while not arrived.acquire(timeout=0.01):
        publisher.publish(Ping(0))
    for number in range(1, count + 1):
        publisher.publish(Ping(number))
        if number % 32 == 0:
            for _ in range(32):
                arrived.acquire(timeout=20)
    publisher.publish(Ping(count + 1))
    thread.join(20)
    publisher.close(1.0)
    assert [number for number in received if number] == list(range(1, count + 1))


@pytest.mark.parametrize(
    "address", ["tcp://10.0.0.1:7000", "tcp://0.0.0.0:7000", "tcp://*:1", "tcp://host:1", "tcp://[::]:1"]
)
def test_beyond_this_machine_a_socket_needs_keys(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NO_KEYS.keys_for(address)
    assert address in caught.value.message
    assert "--keys" in caught.value.message
    assert "--insecure" in caught.value.message
    assert Security(insecure=True).keys_for(address) is None


@pytest.mark.parametrize(
    "address", ["ipc:///run/x", "tcp://127.0.0.1:1", "tcp://127.9.9.9:1", "tcp://[::1]:1", "tcp://localhost:1"]
)
def test_on_this_machine_a_socket_needs_none(address: str) -> None:
    assert NO_KEYS.keys_for(address) is None


async def test_a_network_without_keys_binds_and_connects_nothing_beyond(tmp_path: Path) -> None:
    world = World("tcp", tmp_path)
    with pytest.raises(ConfigError):
        serve(world, "tcp://0.0.0.0:0")
    with pytest.raises(ConfigError):
        serve(world, one_way={"steps": "tcp://0.0.0.0:0"})
    with pytest.raises(ConfigError):
        connect(world, "tcp://10.0.0.1:7000")
    await world.close()


def test_ipc_has_no_keys(keys: Keys) -> None:
    assert Security(Keyring(keys, "server")).keys_for("ipc:///run/x") is None


def test_halves_that_are_no_pair_are_refused(keys: Keys) -> None:
    keys.pairs["client"] = type(keys.pairs["client"])(
        "client", keys.pairs["server"].public, keys.pairs["client"].secret
    )
    with pytest.raises(ConfigError, match="no pair"):
        Keyring(keys, "client")


def test_a_refusal_is_logged_once_for_each_kind_and_always_counted() -> None:
    tally = Tally("router tcp://127.0.0.1:1")
    with structlog.testing.capture_logs() as lines:
        for who in ("key alice", "an unknown key", "key alice"):
            tally.refuse(who, "why")
    assert [line["who"] for line in lines] == ["key alice", "an unknown key"]
    assert tally.refused == 3


def test_the_keys_role_is_what_the_directory_says(keys: Keys) -> None:
    ring = Keyring(keys, "server")
    assert ring.find(keys.pairs["client"].public) == KnownKey("client", "client")
    assert ring.find(make_pair("x").public) is None


def test_a_context_ends_while_its_gate_has_hardly_begun(keys: Keys) -> None:
    """After every pause up to 0.4 ms: the gate's thread is then at one place or another."""
    for number in range(200):
        context: zmq.Context[Any] = zmq.Context()
        gate, socket = Gate(context, Keyring(keys, "server")), context.socket(zmq.ROUTER)
        gate.guard(socket, Tally("router"), {"client"})
        end = time.perf_counter() + 2e-6 * number
        while time.perf_counter() < end:
            pass
        socket.close(0)
        ends = threading.Thread(target=context.term, daemon=True)
        ends.start()
        ends.join(20)
        assert not ends.is_alive(), f"after {2 * number} microseconds"
