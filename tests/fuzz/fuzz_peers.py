"""Who sends it: a stranger without a session, a member with one, and a raw connection. Nobody waits for an answer."""

import contextlib
import os
import socket
import time

import msgspec
import zmq

from actorlm.messages.catalog import protocol
from actorlm.runtime.handshake import Hello, Welcome
from actorlm.runtime.header import Header, Kind, parse
from actorlm.runtime.identity import this_process


class Stranger:
    """A socket of the matching kind that sends frames as they are."""

    def __init__(self, context, path):
        self._path = path
        self._context = context
        self._socket = None

    def send(self, frames):
        if self._socket is None:
            self._socket = open_socket(self._context, self._kind, f"ipc://{self._path}")
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart(frames, zmq.NOBLOCK)

    @property
    def _kind(self):
        if self._path.endswith("-steps"):
            return zmq.XSUB
        return zmq.PUSH if self._path.endswith(("-tokens", "-results")) else zmq.DEALER

    def settle(self):
        """Takes what came back."""
        if self._socket is not None and self._kind == zmq.DEALER:
            drain(self._socket)

    def close(self):
        if self._socket is not None:
            self._socket.close(500)


class Member:
    """A peer that has introduced itself by hand, so that it can send any body with the right header."""

    def __init__(self, context, path, role, name, one_way=None):
        self._context = context
        self._path = path
        self._identity = this_process(role, name)
        self._dealer = open_socket(context, zmq.DEALER, f"ipc://{path}", self._identity.route)
        self._one_way = one_way
        self._pusher = None
        self._attempt = 0
        self._session = 0
        self._sequence = 0

    def join(self):
        """Has a new session; fails if there is none within 10 s."""
        self._attempt += 1
        ours = protocol()
        hello = Hello(ours.version, ours.digest, ours.digests, *msgspec.structs.astuple(self._identity))
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            self._dealer.send_multipart(
                [Header(Kind.HELLO, 0, self._attempt, 0).encode(), msgspec.msgpack.encode(hello)]
            )
            while self._dealer.poll(500):
                frames = self._dealer.recv_multipart()
                header = parse(frames[0])
                assert header.kind is not Kind.REFUSED, frames[1]
                if header.kind is Kind.WELCOME and header.sequence == self._attempt:
                    return self._begin(header.session, msgspec.msgpack.decode(frames[1], type=Welcome))
        raise AssertionError(f"{self._path} does not welcome {self._identity.name}")

    def _begin(self, session, welcome):
        self._session, self._sequence = session, 0
        if self._one_way:
            if self._pusher is not None:
                self._pusher.close(500)
            self._pusher = open_socket(self._context, zmq.PUSH, welcome.one_way[self._one_way])

    def send(self, body):
        if not self._session:
            self.join()
        self._sequence += 1
        header = Header(Kind.MESSAGE, self._session, self._sequence, 0).encode()
        try:
            (self._pusher or self._dealer).send_multipart([header] if body is None else [header, body], zmq.NOBLOCK)
        except zmq.Again:
            self._sequence -= 1

    def settle(self):
        """Takes what came back, and begins anew with the next message, whatever became of the session."""
        drain(self._dealer)
        self._session = 0

    def close(self):
        for one in (self._dealer, self._pusher):
            if one is not None:
                one.close(500)


def open_socket(context, kind, address, route=b""):
    one = context.socket(kind)
    one.set(zmq.SNDHWM, 100_000)
    one.set(zmq.RCVHWM, 100_000)
    if route:
        one.set(zmq.ROUTING_ID, route)
    one.connect(address)
    return one


def drain(one):
    with contextlib.suppress(zmq.Again):
        while True:
            one.recv_multipart(zmq.NOBLOCK)


def raw(path, data):
    """Sends bytes on a connection of its own and leaves."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        with contextlib.suppress(OSError):
            connection.connect(os.fspath(path))
            connection.sendall(data)
