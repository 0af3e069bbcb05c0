"""E01, E04: whatever is sent to a socket between actors is dropped and counted; nothing runs, nobody falls."""

import random
import re
import shutil
import socket
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import pytest
import zmq
from hostile import GREETING, SENDING_KINDS, Assailant, bound_sockets, long_frame, owner_of, pickles, raw_unix, ready
from tree import Tree, in_parallel, until

from actorlm.runtime.header import Header, Kind

pytestmark = [pytest.mark.serving, pytest.mark.timeout(300)]

PLANNED = {
    "supervisor",
    "balancer",
    "frontend-0",
    "detokenizer-0",
    "detokenizer-0-tokens",
    "engine-0-workers",
    "engine-0-steps",
    "engine-0-results",
}
MAX_GROWTH_MIB = 48
DROPPED = re.compile(r" message dropped; further ones are counted actor=(\S+) error=.* kind=(\w+) socket=(.+)$")
NOISE = random.Random(4)
HEADER = Header(Kind.MESSAGE, 77, 1, 0).encode()
HELLO = Header(Kind.HELLO, 0, 1, 0).encode()


@pytest.fixture(scope="module")
def tree():
    """Every kind of socket there is: a replica with a worker process."""
    with Tree("--model-impl", "null", "--executor", "broadcast") as one:
        one.said_when_ready = one.wait_ready().log.splitlines()
        yield one


@pytest.fixture
def sockets(tree):
    found = bound_sockets(tree)
    assert found.keys() == PLANNED
    return found


@pytest.fixture
def assailant():
    one = Assailant()
    yield one
    one.close()


def may_grow(mib):
    """How much a process may grow in this test."""

    def mark(test):
        test.mib = mib
        return test

    return mark


@pytest.fixture
def unharmed(tree, request):
    """Checks after the test that every process is still the same, no bigger, and that the service works."""
    tree.sentinel()
    begin = len(tree.said_when_ready)
    allowed = 1024 * getattr(request.function, "mib", MAX_GROWTH_MIB)
    before = {pid: tree.memory_kib(pid) for pid in tree.processes()}
    yield
    tree.sentinel()
    assert tree.processes().keys() == before.keys()
    grown = {
        name: growth
        for pid, name in tree.processes().items()
        if (growth := until_small(tree, pid, before[pid], allowed)) > allowed
    }
    assert not grown
    assert_told_once(tree.log.splitlines()[begin:])
    tree.settled()


def assert_told_once(lines):
    """One line tells of each kind of garbage at each socket, however much comes; and no other line is written."""
    assert "".join(lines).isprintable() or not lines
    told = [DROPPED.search(line) for line in lines]
    assert None not in told, "\n".join(lines)
    counts = Counter(one.groups() for one in told)
    assert not [what for what, count in counts.items() if count > 1]


def until_small(tree, pid, before, allowed):
    """How much a process has grown, in KiB; what it dropped has a moment to be freed."""
    deadline = time.monotonic() + 5
    while (growth := tree.memory_kib(pid) - before) > allowed and time.monotonic() < deadline:
        time.sleep(0.1)
    return growth


def bad_frames(tree):
    return {
        dict(labels)["actor"]: value for (name, labels), value in tree.metrics().items() if name == "bad_frames_total"
    }


def identities(sockets):
    """No identity, and some that a peer might have."""
    return [None, b"frontend-0", b"frontend-0/1", b"engine-0/1", b"worker-0-0/1", b"supervisor", b"\0", b"\xff" * 255]


def hello(host):
    return msgspec.msgpack.encode(["Hello", 1, "x", {}, "y", "z", 1, host, 1])


def nested(depth):
    return b"\x91" * depth + b"\xc0"


MESSAGES = {
    "empty frames": [[b""], [b"", b""], [b"", b"", b""]],
    "one byte": [[b"\0"], [b"\1"], [b"\xff"], [b"\0", b"\0"]],
    "noise": [[NOISE.randbytes(size)] for size in (2, 16, 23, 24, 25, 1000, 100_000)],
    "noise in frames": [[NOISE.randbytes(24) for _ in range(count)] for count in (2, 3, 4, 40)],
    "noise behind a header": [[HEADER, NOISE.randbytes(size)] for size in (0, 1, 100, 100_000)],
    "headers of every kind": [
        [bytes([version, kind]) + NOISE.randbytes(22), b"\x90"] for version in (0, 1, 2, 255) for kind in range(9)
    ],
    "no session": [[Header(kind, session, 1, 0).encode(), b"\x90"] for kind in Kind for session in (0, 1, 2**32 - 1)],
    "other msgpack": [
        [HEADER, msgspec.msgpack.encode(value)]
        for value in (None, True, 0, -1, 2**63, 1.5, "x", b"x", [], {}, ["Stop"], {"type": "Stop"}, ["Generate"] * 20)
    ],
    "extension types": [[HEADER, kind + b"\xff\xff\xff\xff\x01"] for kind in (b"\xc7", b"\xc8", b"\xc9", b"\xd4")],
    "declared lengths": [[HEADER, kind + b"\xff\xff\xff\xff"] for kind in (b"\xdb", b"\xdd", b"\xdf", b"\xc6")],
    "deep nesting": [[header, nested(100_000)] for header in (HEADER, HELLO)],
    "hello of another": [[HELLO, hello(host)] for host in ("h", "h\n\x1b[31mready\x07")],
    "many frames": [[b"x"] * 10_000],
    "many messages": [[b"x"]] * 10_000,
    "15 MiB": [[b"x" * (15 * 2**20)], [HEADER, b"\x90" * (15 * 2**20)]],
}  # fmt: skip


@pytest.mark.parametrize("what", MESSAGES)
def test_e04_garbage_is_dropped_and_counted(tree, sockets, assailant, unharmed, what):
    before = bad_frames(tree)
    for name, path in sockets.items():
        kind = (
            zmq.XSUB if name.endswith("-steps") else zmq.PUSH if name.endswith(("-tokens", "-results")) else zmq.DEALER
        )
        assailant.send(path, kind, MESSAGES[what])
    tree.sentinel()  # a step reads what was said to the broadcast
    for actor in {owner_of(name) for name in sockets}:
        until(lambda actor=actor: bad_frames(tree)[actor] > before[actor], 5)


@pytest.mark.parametrize("kind", SENDING_KINDS, ids=lambda kind: kind.name)
def test_e04_sockets_of_every_kind(sockets, assailant, unharmed, kind):
    for path in sockets.values():
        for messages in (MESSAGES["noise"], MESSAGES["noise behind a header"], MESSAGES["empty frames"]):
            assailant.send(path, kind, messages, settle=0.01)


def test_e04_more_than_a_message_may_have(sockets, assailant, unharmed):
    """A frame above the limit ends the connection that it comes from."""
    for name, path in sockets.items():
        kind = zmq.XSUB if name.endswith("-steps") else zmq.DEALER
        assailant.send(path, kind, [[b"x" * 100_000_000]], settle=0.1)
    assailant.send(sockets["balancer"], zmq.DEALER, [[b"x" * 20_000_000]], settle=0.3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        NOISE.randbytes(10_000),
        b"\0" * 10_000,
        GREETING[:1],
        GREETING[:11],
        GREETING[:63],
        GREETING,
        GREETING[:10] + b"\x01" + GREETING[11:],
        GREETING[:12] + b"PLAIN".ljust(20, b"\0") + GREETING[32:],
        GREETING[:12] + b"CURVE".ljust(20, b"\0") + GREETING[32:],
        GREETING + b"\x04\x00",
        GREETING + b"\x04\x06\x05READY",
        GREETING + b"\x04\x0a\x05READY\xff\xff\xff\xff",
        GREETING + b"\x06" + b"\xff" * 8,
        GREETING + ready() + b"\x02" + b"\xff" * 8,
        GREETING + ready() + long_frame(2**63, b"x" * 1000),
        GREETING + ready() + long_frame(2**40, b"x" * 1000),
        GREETING + ready(b"NONSENSE") + b"\x00\x01x",
        GREETING + ready(identity=b"x" * 256) + b"\x00\x01x",
        GREETING + ready(identity=b"frontend-0") + b"\x04\xff",
        GREETING + ready() + b"\x01\x01x" * 10_000,
    ],
    ids=lambda data: repr(data[-20:])[2:-1],
)
def test_e04_bytes_that_are_no_zeromq(sockets, unharmed, data):
    for answer in in_parallel([partial(raw_unix, path, data) for path in sockets.values()]):
        assert len(answer) < 200  # a greeting, a command, an error of the handshake
        assert b"null" not in answer


def connections(sockets, count):
    """Opens connections to every socket, holds them all, and lets them go; some say half a greeting."""
    held = []
    for path in sockets.values():
        for number in range(count):
            connection = socket.socket(socket.AF_UNIX)
            connection.setblocking(False)
            held.append(connection)
            try:
                connection.connect(path)
                if number % 2:
                    connection.send(GREETING[:10])
            except OSError:
                time.sleep(0.005)  # its backlog is full
    return held


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.long)])
@may_grow(128)  # 10,000 connections leave 37 MiB for each socket that had them, which the next 10,000 use again
def test_e04_many_connections(tree, sockets, unharmed, count):
    if count > 1000:  # one socket at a time: a process may have 20,000 descriptors
        for name, path in sockets.items():
            held = connections({name: path}, count)
            tree.sentinel()
            for connection in held:
                connection.close()
            time.sleep(1)
        return
    held = connections(sockets, count)
    tree.sentinel()
    for connection in held:
        connection.close()


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_e03_subscribers_that_never_read(tree, sockets, assailant, unharmed, count):
    """Each takes the shortest queue there is, so that what it does not read is kept on the other side."""
    asked = {"max_tokens": 1500, "ignore_eos": True, "temperature": 0}
    expected = tree.text("x", **asked)
    before = {pid: tree.memory_kib(pid) for pid in tree.processes()}
    with ExitStack() as stack:
        for path in sockets.values():
            stack.enter_context(assailant.deaf_subscribers(path, count))
        for _ in range(3):
            assert tree.text("x", **asked) == expected
        grown = {name: (tree.memory_kib(pid) - before[pid]) / 1024 for pid, name in tree.processes().items()}
        assert max(grown.values()) < 24 + count / 20, grown  # a connection has some KiB of buffers


@pytest.mark.parametrize("seconds", [1, pytest.param(10, marks=pytest.mark.long)])
@may_grow(192)
def test_e04_subscriptions_without_end(tree, sockets, assailant, unharmed, seconds):
    """While steps run: only then the broadcast reads them, and ZeroMQ keeps without a bound what nobody reads."""
    answers = []
    steps = threading.Thread(
        target=lambda: answers.append(tree.complete("x", max_tokens=1500 * seconds, ignore_eos=True))
    )
    steps.start()
    assailant.subscribe_for(sockets["engine-0-steps"], seconds)
    steps.join()
    assert answers[0]["usage"]["completion_tokens"] == 1500 * seconds


@pytest.fixture
def pwned():
    directory = tempfile.mkdtemp(prefix="e01")
    yield Path(directory, "pwned")
    shutil.rmtree(directory)


@pytest.mark.parametrize("kind", SENDING_KINDS, ids=lambda kind: kind.name)
def test_e01_pickles_are_never_loaded(sockets, assailant, unharmed, pwned, kind):
    for path in sockets.values():
        for identity in identities(sockets):
            messages = []
            for payload in pickles(pwned):
                messages += [[payload], [b"", payload], [HEADER, payload], [HEADER, b"", payload], [payload] * 3]
                messages += [[HEADER, msgspec.msgpack.encode(payload)], [b"\1" + payload]]
            assailant.send(path, kind, messages, identity, settle=0)
    time.sleep(0.3)
    assert not pwned.exists()
    assert not list(pwned.parent.iterdir())
