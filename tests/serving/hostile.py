"""What somebody with bad intentions sends: to the HTTP port as bytes, to the sockets between actors as anything."""

import contextlib
import socket
import struct
import time
from pathlib import Path

import zmq

# Bytes over HTTP.


def raw_http(tree, data, seconds=10):
    """Sends bytes on a connection of its own and reads until the server closes it, or falls silent for so long."""
    with socket.create_connection(("127.0.0.1", tree.port), seconds) as connection:
        connection.settimeout(seconds)
        answer = b""
        with contextlib.suppress(ConnectionError, TimeoutError):
            connection.sendall(data)
            while piece := connection.recv(1 << 16):
                answer += piece
        return answer


def head(method, path, **headers):
    """The head of a request after which the server closes the connection. Underscores in names stand for dashes."""
    lines = [f"{method} {path} HTTP/1.1", "host: x", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def post(path, body, **headers):
    """A POST of JSON bytes."""
    return head("POST", path, content_type="application/json", content_length=len(body), **headers) + body


def status_of(answer):
    """The status of an answer's first line; 0 if there is no answer."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


# The sockets between actors.


def inodes_of(pid):
    """The inodes of a process's sockets."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    return found


def network_sockets(tree):
    """(protocol, address, port) of every socket of the tree that listens, or takes datagrams."""
    found = set()
    for pid in tree.processes():
        inodes = inodes_of(pid)
        for protocol in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
            for line in Path(f"/proc/{pid}/net/{protocol}").read_text().splitlines()[1:]:
                row = line.split()
                if row[9] in inodes and (row[3] == "0A" or not protocol.startswith("tcp")):
                    address, port = row[1].split(":")
                    found.add((protocol, _address(address), int(port, 16)))
    return found


def _address(hexadecimal):
    words = [bytes.fromhex(hexadecimal[i : i + 8])[::-1] for i in range(0, len(hexadecimal), 8)]
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))


def bound_sockets(tree):
    """{name: path} of every unix socket that a process of the tree has bound to a path."""
    inodes = set().union(*(inodes_of(pid) for pid in tree.processes()))
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    paths = {row[7] for row in rows if len(row) > 7 and row[6] in inodes}
    return {Path(path).name: path for path in sorted(paths)}


def owner_of(name):
    """The actor that binds the socket of this name."""
    for ending in ("-tokens", "-workers", "-steps", "-results"):
        name = name.removesuffix(ending)
    return name


class Assailant:
    """Connects ZeroMQ sockets of any kind and sends frames, without waiting for anybody to take them."""

    def __init__(self):
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 10_000)

    def send(self, path, kind, messages, identity=None, settle=0.05):
        """Sends multipart messages over one new socket; what has no room within 2 s is left."""
        with self._context.socket(kind) as client:
            client.setsockopt(zmq.LINGER, 500)
            client.setsockopt(zmq.SNDTIMEO, 2000)
            client.setsockopt(zmq.SNDHWM, 0)
            if identity is not None:
                client.setsockopt(zmq.ROUTING_ID, identity)
            if kind == zmq.SUB:
                client.setsockopt(zmq.SUBSCRIBE, b"")
            client.connect(f"ipc://{path}")
            for frames in messages:
                with contextlib.suppress(zmq.Again, zmq.ZMQError):
                    if kind == zmq.SUB:
                        client.setsockopt(zmq.SUBSCRIBE, frames[0])
                    else:
                        client.send_multipart(frames, 0 if kind != zmq.REQ else zmq.NOBLOCK)
            time.sleep(settle)

    def subscribe_for(self, path, seconds):
        """Subscribes to one topic after the other, as fast as it can."""
        with self._context.socket(zmq.XSUB) as client:
            client.connect(f"ipc://{path}")
            deadline, number = time.monotonic() + seconds, 0
            while time.monotonic() < deadline:
                try:
                    client.send(b"\1%d" % number, zmq.NOBLOCK)
                    number += 1
                except zmq.Again:
                    time.sleep(0.001)

    @contextlib.contextmanager
    def deaf_subscribers(self, path, count):
        """So many subscribe to everything within the block, and never read."""
        sockets = [self._context.socket(zmq.SUB) for _ in range(count)]
        for one in sockets:
            one.setsockopt(zmq.LINGER, 0)
            one.setsockopt(zmq.RCVHWM, 1)
            one.setsockopt(zmq.RCVBUF, 1)
            one.setsockopt(zmq.SUBSCRIBE, b"")
            one.connect(f"ipc://{path}")
        yield
        for one in sockets:
            one.close()

    def close(self):
        self._context.destroy(linger=0)


SENDING_KINDS = (zmq.DEALER, zmq.PUSH, zmq.REQ, zmq.SUB, zmq.XSUB, zmq.PUB, zmq.PAIR)


def pickles(target):
    """Two pickles that touch a file when they are loaded, written out."""
    command = b"touch " + str(target).encode()
    return [
        b"cposix\nsystem\n(S'" + command + b"'\ntR.",
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c" + bytes([len(command)]) + command + b"\x85R.",
    ]


# Bytes to a unix socket.

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
"""A whole ZMTP greeting."""


def ready(kind=b"DEALER", identity=b""):
    """The command that ends ZMTP's handshake."""
    pairs = ((b"Socket-Type", kind), (b"Identity", identity))
    properties = b"".join(bytes([len(n)]) + n + struct.pack(">I", len(v)) + v for n, v in pairs)
    body = b"\x05READY" + properties
    return (b"\x04" + bytes([len(body)]) if len(body) < 256 else b"\x06" + struct.pack(">Q", len(body))) + body


def long_frame(length, data=b"", more=False):
    """A ZMTP frame that declares `length` bytes and brings `data`."""
    return bytes([0x02 | more]) + struct.pack(">Q", length) + data


@contextlib.contextmanager
def held_connections(address, payloads, count):
    """Connections to a TCP address, `count` for each payload, which each has sent; all are held within the block."""
    with contextlib.ExitStack() as stack:
        for payload in payloads:
            for _ in range(count):
                connection = stack.enter_context(socket.create_connection(address, 10))
                with contextlib.suppress(ConnectionError):
                    connection.sendall(payload)
        yield


def raw_unix(path, data, seconds=0.1):
    """Sends bytes to a unix socket and returns what comes back within that time; the connection is closed then."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.settimeout(seconds)
        answer = b""
        with contextlib.suppress(ConnectionError, TimeoutError):
            connection.sendall(data)
            while piece := connection.recv(1 << 16):
                answer += piece
        return answer
