"""The broadcast: everybody who may hear it hears all of it, or somebody is told."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from runtime_world import Blob, Ping, Pong

from actorlm.errors import ProtocolError
from actorlm.runtime.broadcast import Publisher, Subscriber, draw_topic
from actorlm.runtime.errors import (
    AddressUnusable,
    BadBody,
    BadFrames,
    BadHeader,
    BroadcastFull,
    SequenceGap,
    UnexpectedKind,
    WrongEpoch,
)
from actorlm.runtime.header import Header, Kind

TOPIC = draw_topic()
INBOX = Ping | Blob
WAIT_S = 5.0


@pytest.fixture
def open_publisher(tmp_path: Path) -> Iterator[Callable[..., Publisher[Any]]]:
    opened: list[Publisher[Any]] = []

    def open_one(address: str = f"ipc://{tmp_path}/steps", **options: Any) -> Publisher[Any]:
        opened.append(Publisher(address, **({"epoch": 3, "topic": TOPIC, "inbox": INBOX} | options)))
        return opened[-1]

    yield open_one
    for publisher in opened:
        publisher.close()


@pytest.fixture
def open_subscriber() -> Iterator[Callable[..., Subscriber[Any]]]:
    opened: list[Subscriber[Any]] = []

    def open_one(address: str, **options: Any) -> Subscriber[Any]:
        opened.append(Subscriber(address, **({"epoch": 3, "topic": TOPIC, "inbox": INBOX} | options)))
        return opened[-1]

    yield open_one
    for subscriber in opened:
        subscriber.close()


@pytest.fixture
def raw() -> Iterator[Callable[[int], zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context.socket
    context.destroy(linger=0)


def sync(publisher: Publisher[Any], *subscribers: Subscriber[Any]) -> None:
    """Publishes until everybody hears it, as an executor does at the start of an epoch."""
    deaf = set(subscribers)
    deadline = time.monotonic() + WAIT_S
    while deaf:
        assert time.monotonic() < deadline
        publisher.publish(Ping(0))
        deaf = {subscriber for subscriber in deaf if subscriber.receive(0.02) is None}
    for subscriber in subscribers:
        while subscriber.sequence < publisher.sequence:
            assert subscriber.receive(WAIT_S) == Ping(0)


@pytest.mark.parametrize("address", [None, "tcp://127.0.0.1:0"])
def test_every_subscriber_hears_everything_in_order(
    open_publisher: Any, open_subscriber: Any, address: str | None
) -> None:
    publisher = open_publisher() if address is None else open_publisher(address)
    subscribers = [open_subscriber(publisher.address) for _ in range(3)]
    sync(publisher, *subscribers)
    for number in range(50):
        publisher.publish(Ping(number))
        for subscriber in subscribers:
            assert subscriber.receive(WAIT_S) == Ping(number)
    assert subscribers[0].receive(0.0) is None


def test_a_subscriber_may_wait_in_a_thread_of_its_own(open_publisher: Any) -> None:
    publisher = open_publisher()
    heard: list[Any] = []

    def work() -> None:
        subscriber: Subscriber[Any] = Subscriber(publisher.address, epoch=3, topic=TOPIC, inbox=INBOX)
        while (message := subscriber.receive(WAIT_S)) != Ping(9):
            heard.append(message)
        subscriber.close()

    thread = threading.Thread(target=work)
    thread.start()
    while not heard:
        publisher.publish(Ping(0))
        time.sleep(0.01)
    publisher.publish(Ping(9))
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert set(heard) == {Ping(0)}


def test_one_encoding_whatever_the_number_of_subscribers(
    open_publisher: Any, open_subscriber: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = open_publisher()
    subscribers = [open_subscriber(publisher.address) for _ in range(4)]
    sync(publisher, *subscribers)
    encoded = []
    encode = publisher._codec.encode
    monkeypatch.setattr(publisher._codec, "encode", lambda message: encoded.append(message) or encode(message))
    publisher.publish(Ping(1))
    assert [subscriber.receive(WAIT_S) for subscriber in subscribers] == [Ping(1)] * 4
    assert encoded == [Ping(1)]


@pytest.mark.parametrize("topic", [b"", TOPIC[:1], TOPIC[:-1], TOPIC + b"x", b"\0" * 16])
def test_a_subscriber_to_another_topic_gets_nothing(
    open_publisher: Any, open_subscriber: Any, raw: Any, topic: bytes
) -> None:
    publisher = open_publisher()
    eavesdropper = raw(zmq.SUB)
    eavesdropper.subscribe(topic)
    eavesdropper.connect(publisher.address)
    subscriber = open_subscriber(publisher.address)
    sync(publisher, subscriber)
    deadline = time.monotonic() + WAIT_S
    while not publisher.tally.dropped:
        assert time.monotonic() < deadline
        publisher.publish(Ping(0))
        subscriber.receive(WAIT_S)
    for number in range(20):
        publisher.publish(Ping(number))
        assert subscriber.receive(WAIT_S) == Ping(number)
    assert not eavesdropper.poll(50)
    assert publisher.tally.dropped == {"UnexpectedKind": 1}


def test_e04_garbage_at_a_publisher(open_publisher: Any, open_subscriber: Any, raw: Any) -> None:
    publisher = open_publisher()
    subscriber = open_subscriber(publisher.address)
    sync(publisher, subscriber)
    stranger = raw(zmq.XSUB)
    stranger.connect(publisher.address)
    junk = [[b""], [b"\x01"], [b"\x02"], [b"x" * 3000], [b"\x01" + TOPIC[:8], b"more"], [b"\x01" * 24, b"\x80\x04."]]
    for frames in junk * 100:
        stranger.send_multipart(frames)
    for _ in range(200):
        publisher.publish(Ping(1))
        assert subscriber.receive(WAIT_S) == Ping(1)
        if publisher.tally.dropped["UnexpectedKind"] >= 400:
            break
    assert publisher.tally.dropped["UnexpectedKind"] > 1
    assert not stranger.poll(50)


def test_a_subscriber_that_leaves_is_no_obstacle(open_publisher: Any, open_subscriber: Any) -> None:
    publisher = open_publisher()
    leaving, staying = open_subscriber(publisher.address), open_subscriber(publisher.address)
    sync(publisher, leaving, staying)
    leaving.close()
    for number in range(300):
        publisher.publish(Ping(number))
        assert staying.receive(WAIT_S) == Ping(number)


def test_a_subscriber_that_does_not_read_is_an_error_and_loses_nothing(
    open_publisher: Any, open_subscriber: Any
) -> None:
    publisher = open_publisher()
    subscriber = open_subscriber(publisher.address)
    sync(publisher, subscriber)
    before = publisher.sequence

    def publish_too_much() -> None:
        for _ in range(2000):
            publisher.publish(Blob(bytes(20_000)))
            time.sleep(0.0002)

    with pytest.raises(BroadcastFull, match="does not read"):
        publish_too_much()
    published = publisher.sequence - before
    assert published >= 64
    for _ in range(published):
        assert subscriber.receive(WAIT_S) == Blob(bytes(20_000))
    assert subscriber.sequence == publisher.sequence
    publisher.publish(Ping(1))
    assert subscriber.receive(WAIT_S) == Ping(1)


def test_publishing_to_nobody_is_no_error(open_publisher: Any) -> None:
    publisher = open_publisher()
    for number in range(500):
        publisher.publish(Ping(number))
    assert publisher.sequence == 500


def test_a_message_that_is_not_in_the_inbox_is_an_error_of_the_engine(open_publisher: Any) -> None:
    publisher = open_publisher()
    with pytest.raises(BadBody, match="Pong"):
        publisher.publish(Pong(1))
    assert publisher.sequence == 0


@pytest.fixture
def rogue(raw: Any, tmp_path: Path, open_subscriber: Any) -> tuple[zmq.Socket[bytes], Subscriber[Any]]:
    """A publisher that sends what it likes, and a subscriber that hears it."""
    socket = raw(zmq.XPUB)
    socket.bind(f"ipc://{tmp_path}/rogue")
    subscriber = open_subscriber(f"ipc://{tmp_path}/rogue")
    assert socket.poll(int(1000 * WAIT_S))
    assert socket.recv() == b"\x01" + TOPIC
    return socket, subscriber


def frames(sequence: int, *, epoch: int = 3, kind: Kind = Kind.BROADCAST, version: int = 1) -> list[bytes]:
    return [TOPIC, Header(kind, epoch, sequence, 0, version).encode(), msgspec.msgpack.encode(Ping(sequence))]


def test_a_late_subscriber_begins_with_what_reaches_it_and_reports_every_gap(rogue: Any) -> None:
    socket, subscriber = rogue
    for sequence in (7, 8, 10):
        socket.send_multipart(frames(sequence))
    assert subscriber.receive(WAIT_S) == Ping(7)
    assert subscriber.receive(WAIT_S) == Ping(8)
    with pytest.raises(SequenceGap) as gap:
        subscriber.receive(WAIT_S)
    assert (gap.value.expected, gap.value.got) == (9, 10)


def test_a_repeated_message_is_a_gap(rogue: Any) -> None:
    socket, subscriber = rogue
    for sequence in (7, 7):
        socket.send_multipart(frames(sequence))
    subscriber.receive(WAIT_S)
    with pytest.raises(SequenceGap):
        subscriber.receive(WAIT_S)


def test_another_epoch_is_reported(rogue: Any) -> None:
    socket, subscriber = rogue
    socket.send_multipart(frames(1, epoch=4))
    with pytest.raises(WrongEpoch) as wrong:
        subscriber.receive(WAIT_S)
    assert (wrong.value.expected, wrong.value.got) == (3, 4)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        ([TOPIC], BadFrames),
        ([TOPIC, b""], BadFrames),
        (frames(1)[:2], BadFrames),
        ([*frames(1), b"more"], BadFrames),
        ([TOPIC + b"x", *frames(1)[1:]], BadFrames),
        ([TOPIC, b"\x80\x04.", b""], BadHeader),
        (frames(1, version=2), BadHeader),
        (frames(1, kind=Kind.MESSAGE), UnexpectedKind),
        ([*frames(1)[:2], b"\x80\x04."], BadBody),
        ([*frames(1)[:2], b"\x91" * 100_000], BadBody),
        ([*frames(1)[:2], msgspec.msgpack.encode(Pong(1))], BadBody),
    ],
)
def test_e04_garbage_at_a_subscriber_is_reported(rogue: Any, sent: list[bytes], error: type[ProtocolError]) -> None:
    socket, subscriber = rogue
    socket.send_multipart(sent)
    with pytest.raises(error):
        subscriber.receive(WAIT_S)


def test_an_address_that_cannot_be_bound_is_named() -> None:
    with pytest.raises(AddressUnusable, match="nowhere"):
        Publisher("ipc:///nowhere/at/all", epoch=1, topic=TOPIC, inbox=Ping)
    with pytest.raises(AddressUnusable, match="nonsense"):
        Subscriber("nonsense", epoch=1, topic=TOPIC, inbox=Ping)
