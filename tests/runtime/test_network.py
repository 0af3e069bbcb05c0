"""What every network does, whichever transport carries it, on both event loops."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from runtime_world import (
    Blob,
    Ping,
    Pong,
    Row,
    Rows,
    Side,
    World,
    connect,
    identity,
    mailbox,
    pair,
    refusal,
    serve,
    until,
)

from actorlm.runtime.errors import AddressUnusable, NotConnected, PeerFull, PeerUnknown
from actorlm.runtime.events import LinkUp, PeerJoined
from actorlm.runtime.fingerprint import fingerprint
from actorlm.runtime.mailbox import Overflow
from actorlm.wire import Message, int32


def heavy(number: int) -> Blob:
    """A numbered message that is large enough to fill the system's buffers quickly."""
    return Blob(number.to_bytes(4) + bytes(20_000))


async def fill(send: Callable[[Blob], None]) -> int:
    """Sends numbered messages until the queue is full; returns how many left."""
    for number in range(10_000):
        for patience in (0.05, 0.05, 0.0):  # what the transport can still carry away, it does meanwhile
            try:
                send(heavy(number))
                break
            except PeerFull:
                if not patience:
                    return number
                await asyncio.sleep(patience)
    raise AssertionError("the queue was never full")


async def test_messages_travel_both_ways(world: World) -> None:
    server, client = await pair(world)
    assert client.port.is_up
    assert set(server.port.peers) == {"client-0"}
    client.send(Ping(1))
    client.send(Rows((Row(int32([1, 2])),)))
    assert await server.take(2) == [("client-0", Ping(1)), ("client-0", Rows((Row(int32([1, 2])),)))]
    server.send("client-0", Pong(2))
    assert await client.take() == [("server-0", Pong(2))]


async def test_the_client_may_come_first(world: World) -> None:
    address = serve_address(world)
    client = connect(world, address)
    with pytest.raises(NotConnected):
        client.send(Ping(1))
    await asyncio.sleep(0.05)
    server = serve(world, address)
    assert await client.take() == [("server-0", LinkUp("server-0"))]
    assert len(await server.take()) == 1


def serve_address(world: World) -> str:
    """An address that is free and stays the same."""
    if world.transport not in ("tcp", "curve"):
        return world.address()
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


async def test_twenty_thousand_echoes_in_both_directions(world: World) -> None:
    count = 20_000 if world.transport == "ipc" else 4_000
    server, client = await pair(world)

    async def echo(side: Side, own: type, to: tuple[str, ...]) -> list[int]:
        """Sends `count` numbers and answers those of the other side; returns the numbers that came back."""
        pending = deque(range(count))
        answered, returned = 0, []

        async def send() -> None:
            while answered < count or pending:
                try:
                    while pending:
                        side.send(*to, own(pending[0]))
                        pending.popleft()
                except PeerFull:
                    pass
                await asyncio.sleep(0)

        sending = asyncio.ensure_future(send())
        while len(returned) < count or answered < count:
            async with asyncio.timeout(20):
                numbers = [message.number for _, message in await side.box.drain()]
            returned += [number - count for number in numbers if number >= count]
            requests = [number for number in numbers if number < count]
            answered += len(requests)
            pending.extend(number + count for number in requests)
        await sending
        return returned

    results = await asyncio.gather(echo(server, Pong, ("client-0",)), echo(client, Ping, ()))
    assert results[0] == results[1] == list(range(count))


async def test_one_way_sockets_deliver_with_the_name_of_the_peer(world: World) -> None:
    server, client = await pair(world, server={"one_way": {"steps": world.address()}, "topic": b"secret"})
    assert client.port.welcome.topic == b"secret"
    assert client.port.welcome.one_way == server.port.one_way
    pusher = client.port.pusher("steps")
    for number in range(3):
        pusher.send(Ping(number))
    assert await server.take(3) == [("client-0", Ping(number)) for number in range(3)]


async def test_a_one_way_socket_that_is_not_offered_is_an_error(world: World) -> None:
    _, client = await pair(world)
    with pytest.raises(PeerUnknown, match="steps"):
        client.port.pusher("steps").send(Ping(1))


async def test_a_pusher_is_not_connected_before_its_link(world: World) -> None:
    client = connect(world, serve_address(world))
    with pytest.raises(NotConnected):
        client.port.pusher("steps").send(Ping(1))


async def test_a_closed_link_sends_nothing_and_opens_no_socket(world: World) -> None:
    """Else the network would wait for that socket for ever. Its peer may still be heard of while it closes."""
    _, client = await pair(world, server={"one_way": {"steps": world.address()}})
    link, pusher = client.port, client.port.pusher("steps")
    pusher.send(Ping(0))
    closing = asyncio.get_running_loop().create_task(client.network.close())
    await asyncio.sleep(0)
    for send in (pusher.send, link.pusher("others").send, link.send):
        with pytest.raises(NotConnected):
            send(Ping(1))
    await asyncio.wait_for(closing, 10)
    with pytest.raises(NotConnected):
        pusher.send(Ping(2))


async def test_several_peers_are_told_apart(world: World) -> None:
    server = serve(world)
    clients = [connect(world, server.port.address, identity=identity(f"client-{n}")) for n in range(4)]
    for client in clients:
        await client.take()
    await server.take(4)
    for number, client in enumerate(clients):
        client.send(Ping(number))
        server.send(f"client-{number}", Pong(number))
    assert sorted(await server.take(4)) == [(f"client-{n}", Ping(n)) for n in range(4)]
    for number, client in enumerate(clients):
        assert await client.take() == [("server-0", Pong(number))]


async def test_an_unknown_peer_is_an_error(world: World) -> None:
    server = serve(world)
    with pytest.raises(PeerUnknown, match="client-7"):
        server.send("client-7", Pong(1))


async def test_a_role_that_is_not_admitted_is_refused(world: World) -> None:
    server = serve(world)
    client = connect(world, server.port.address, identity=identity(role="stranger"))
    reason = await refusal(client)
    assert "stranger" in reason
    assert "server-0" in reason
    assert not client.port.is_up
    assert server.box.depth == 0


async def test_swapped_fields_of_one_type_are_refused_by_the_name_of_the_struct(world: World) -> None:
    def inbox(*names: str) -> Any:
        import msgspec

        fields = [(name, int) for name in names]
        return msgspec.defstruct("Measured", fields, bases=(Message,), tag="Measured", array_like=True)

    ours = fingerprint({"server": Ping | inbox("width", "height")}, version=1)
    theirs = fingerprint({"server": Ping | inbox("height", "width")}, version=1)
    server = serve(world, protocol=ours)
    client = connect(world, server.port.address, protocol=theirs)
    reason = await refusal(client)
    assert "Measured" in reason
    assert "client-0" in reason
    assert "server-0" in reason


async def test_a_newer_incarnation_replaces_the_older_one_which_is_refused(world: World) -> None:
    server, old = await pair(world)
    new = connect(world, server.port.address, identity=identity(incarnation=2))
    await new.take()
    assert await server.take() == [("client-0", PeerJoined("client-0", "client", 2))]
    old.send(Ping(1))
    assert "newer incarnation" in await refusal(old)
    new.send(Ping(2))
    assert await server.take() == [("client-0", Ping(2))]
    server.send("client-0", Pong(3))
    assert await new.take() == [("server-0", Pong(3))]


async def test_a_forgotten_peer_joins_again_with_the_next_thing_it_sends(world: World) -> None:
    server, client = await pair(world)
    await asyncio.sleep(0.05)  # a repeated Hello that was on its way would join it at once
    server.port.forget("client-0")
    with pytest.raises(PeerUnknown):
        server.send("client-0", Pong(1))
    client.send(Ping(1))
    assert await client.take() == [("server-0", LinkUp("server-0"))]
    assert await server.take() == [("client-0", PeerJoined("client-0", "client", 1))]
    assert server.dropped == {"UnknownSession": 1}
    client.send(Ping(2))
    assert await server.take() == [("client-0", Ping(2))]


async def test_a_restarted_server_gets_its_clients_back(world: World) -> None:
    pull = serve_address(world)
    old, client = await pair(world, server={"address": serve_address(world), "one_way": {"steps": pull}})
    pusher = client.port.pusher("steps")
    pusher.send(Ping(0))
    await old.take()
    session = client.port.welcome.session
    await old.network.close()
    new = serve(world, old.port.address, one_way={"steps": pull})
    assert await client.take() == [("server-0", LinkUp("server-0"))]
    assert client.port.welcome.session != session
    assert await new.take() == [("client-0", PeerJoined("client-0", "client", 1))]
    client.send(Ping(1))
    pusher.send(Ping(2))
    new.send("client-0", Pong(3))
    assert {message for _, message in await new.take(2)} == {Ping(1), Ping(2)}
    assert await client.take() == [("server-0", Pong(3))]


async def test_sending_to_a_server_that_is_gone_is_an_error_soon(world: World) -> None:
    server, client = await pair(world)
    await server.network.close()

    await until(lambda: not client.port.is_up)
    with pytest.raises(NotConnected):
        client.send(Ping(1))


async def test_a42_a_client_that_does_not_read_fills_its_own_queue_and_nobody_elses(world: World) -> None:
    full = mailbox("full", capacity=4)
    server, stuck = await pair(world, client={"box": full, "high_water": 8}, server={"high_water": 8})
    other = connect(world, server.port.address, identity=identity("client-1"))
    await other.take()
    await server.take()
    sent = await fill(lambda message: server.send("client-0", message))
    server.send("client-1", Pong(1))
    assert await other.take() == [("server-0", Pong(1))]
    assert [message for _, message in await stuck.take(sent)] == [heavy(number) for number in range(sent)]
    assert stuck.dropped == {}


async def test_a_full_mailbox_pauses_its_port_and_loses_nothing(world: World) -> None:
    server, client = await pair(
        world, server={"box": mailbox("small", capacity=8), "high_water": 8}, client={"high_water": 8}
    )
    sent = await fill(client.send)
    assert sent > 8
    assert server.box.depth == server.box.high_water == 8
    received = []
    while len(received) < sent + 100:
        received += await server.take()
        if sent <= len(received) < sent + 100:
            client.send(heavy(len(received)))
    assert [message for _, message in received] == [heavy(number) for number in range(sent + 100)]
    assert server.dropped == {}


async def test_a_full_one_way_socket_is_an_error_and_loses_nothing(world: World) -> None:
    server, client = await pair(
        world,
        server={"box": mailbox("small", capacity=8), "high_water": 8, "one_way": {"steps": world.address()}},
        client={"high_water": 8},
    )
    pusher = client.port.pusher("steps")
    sent = await fill(pusher.send)
    assert [message for _, message in await server.take(sent)] == [heavy(number) for number in range(sent)]


async def test_what_filled_a_queue_for_a_server_that_died_does_not_fill_it_for_the_next(world: World) -> None:
    pull, small = serve_address(world), mailbox("small", capacity=1)
    old, client = await pair(
        world,
        server={"address": serve_address(world), "one_way": {"steps": pull}, "box": small, "high_water": 8},
        client={"high_water": 8},
    )
    pusher = client.port.pusher("steps")
    await fill(pusher.send)
    await fill(client.send)
    await old.network.close(flush_s=0)
    new = serve(world, old.port.address, one_way={"steps": pull})
    assert await client.take() == [("server-0", LinkUp("server-0"))]
    assert len(await new.take()) == 1
    client.send(Ping(1))
    pusher.send(Ping(2))
    assert {message for _, message in await new.take(2)} == {Ping(1), Ping(2)}


@pytest.mark.parametrize("overflow", [Overflow.REFUSE, Overflow.DROP_NEWEST])
async def test_other_policies_drop_at_the_port_and_count(world: World, overflow: Overflow) -> None:
    server, client = await pair(world, server={"box": mailbox("small", capacity=8, overflow=overflow)})
    for number in range(20):
        client.send(Ping(number))
    await until(lambda: server.box.dropped + server.box.refused == 12)
    assert [message for _, message in await server.take(8)] == [Ping(number) for number in range(8)]
    assert server.dropped == ({"MailboxFull": 12} if overflow is Overflow.REFUSE else {})
    client.send(Ping(20))
    assert await server.take() == [("client-0", Ping(20))]


@pytest.mark.parametrize("overflow", [Overflow.REFUSE, Overflow.DROP_NEWEST])
async def test_the_news_of_a_peer_waits_for_room(world: World, overflow: Overflow) -> None:
    server = serve(world, box=mailbox("full", capacity=1, overflow=overflow))
    server.box.put("server-0", Ping(0))
    client = connect(world, server.port.address)
    await until(lambda: server.dropped.get("MailboxFull"))
    assert not client.port.is_up
    await server.take()
    assert await server.take() == [("client-0", PeerJoined("client-0", "client", 1))]
    await client.take()


@pytest.mark.parametrize("overflow", [Overflow.REFUSE, Overflow.DROP_NEWEST])
async def test_the_news_of_a_link_waits_for_room(world: World, overflow: Overflow) -> None:
    server = serve(world)
    box = mailbox("full", capacity=1, overflow=overflow)
    box.put("client-0", Pong(0))
    client = connect(world, server.port.address, box=box)
    await until(lambda: client.dropped.get("MailboxFull"))
    assert not client.port.is_up
    await client.take()
    assert await client.take() == [("server-0", LinkUp("server-0"))]
    await until(lambda: client.port.is_up)


async def test_what_is_not_in_the_inbox_is_dropped_and_the_link_goes_on(world: World) -> None:
    server, client = await pair(world)
    client.send(Pong(1))
    client.send(Row(b"123"))
    client.send(Rows((Row(b"1234"), Row(b"12345"))))
    client.send(Ping(2))
    assert await server.take() == [("client-0", Ping(2))]
    assert server.dropped == {"BadBody": 3}


@pytest.mark.parametrize("world", ["tcp", "memory"], indirect=True)
async def test_an_address_that_is_taken_is_an_error(world: World) -> None:
    server = serve(world)
    with pytest.raises(AddressUnusable, match=server.port.address):
        serve(world, server.port.address)


async def test_close_delivers_what_was_sent(world: World) -> None:
    server, client = await pair(world)
    for number in range(500):
        client.send(Ping(number))
    await client.network.close()
    assert [message for _, message in await server.take(500)] == [Ping(number) for number in range(500)]
