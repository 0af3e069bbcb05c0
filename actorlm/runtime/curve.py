"""CURVE on TCP sockets: who may connect, by key and role.

Every TCP socket has keys, except on the loopback of one machine and where their lack is accepted by name. A socket that
listens admits only keys that are known and whose role it admits: CURVE alone would let every key in, so each of its
contexts has a `Gate`, which answers ZeroMQ's questions (ZAP) about those who come. A key that goes, or comes, counts
from the next connection on. A refused peer is counted, and each kind of refusal logged once.
"""

import ipaddress
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from actorlm.errors import ConfigError
from actorlm.keys import KeyDirectory, KnownKey
from actorlm.runtime.tally import Tally
from actorlm.runtime.zeromq_socket import MISMATCH, PlainSocket

ZAP_ADDRESS = "inproc://zeromq.zap.01"
ADMITTED, TRY_AGAIN, REFUSED = b"200", b"300", b"400"
WATCHED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_MONITOR_STOPPED


class Keyring:
    """The keys of one process. Raises ConfigError if there is no key of its role, or one that cannot be right."""

    def __init__(self, directory: KeyDirectory, role: str) -> None:
        self._directory = directory
        pair = directory.own(role)
        self.public, self.secret = pair.public.encode(), pair.secret.encode()
        if zmq.curve_public(self.secret) != self.public:
            raise ConfigError(f"{directory.path}: the two halves of the key of role {role} are no pair; copy it anew")
        self._known = directory.known()
        self._state = directory.state()

    def of_server(self, role: str) -> bytes:
        """The public key of those who listen as this role."""
        return self._directory.of_server(role).encode()

    def find(self, public: str) -> KnownKey | None:
        """Whose key this is, as the directory says now. Raises ConfigError while that cannot be read."""
        state = self._directory.state()
        if state != self._state:
            self._known = {}  # whatever is wrong with the new ones, the old ones do not count any more
            self._known, self._state = self._directory.known(), state
        return self._known.get(public)


@dataclass(frozen=True, slots=True)
class Security:
    """What the TCP sockets of one process need. `insecure` ones do without keys wherever they lead."""

    keyring: Keyring | None = None
    insecure: bool = False

    @classmethod
    def of(cls, keys: str | Path | None, role: str, *, insecure: bool = False) -> "Security":
        """That of a process of this role, with the directory `keys` if there is one. Raises ConfigError."""
        if keys is not None and insecure:
            raise ConfigError(
                "--keys (security.keys) and --insecure (security.insecure) contradict each other; leave one out"
            )
        return cls(Keyring(KeyDirectory(keys), role) if keys is not None else None, insecure)

    def keys_for(self, address: str) -> Keyring | None:
        """The keys that a socket at this address has. Raises ConfigError where it may not be without."""
        if not address.startswith("tcp:"):
            return None
        if self.keyring is None and not self.insecure:
            check_loopback(address)
        return self.keyring

    def secure_client(self, socket: PlainSocket, address: str, server_role: str) -> None:
        """Has a socket that is about to connect prove its key, and believe nobody but this role's."""
        keys = self.keys_for(address)
        if keys is not None:
            socket.set(zmq.CURVE_SERVERKEY, keys.of_server(server_role))
            socket.set(zmq.CURVE_PUBLICKEY, keys.public)
            socket.set(zmq.CURVE_SECRETKEY, keys.secret)


NO_KEYS = Security()


def check_loopback(address: str) -> None:
    """Raises ConfigError for a `tcp://` address that leads beyond this machine."""
    host, has_port, _ = address.removeprefix("tcp://").rpartition(":")
    if has_port and not _is_loopback(host):
        raise ConfigError(
            f"{address} leads beyond this machine and has no keys, so anybody who reaches it would control the tree:"
            " make keys with `actorlm keys DIR` and set --keys (security.keys), or accept that with --insecure"
            " (security.insecure)"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Gate:
    """Decides who may connect to the sockets of one context, in a thread that ends with the context."""

    def __init__(self, context: "zmq.Context[PlainSocket]", keyring: Keyring) -> None:
        self._keyring = keyring
        self._doors: dict[bytes, Door] = {}
        self._context = context
        self._questions = context.socket(zmq.REP)
        self._questions.bind(ZAP_ADDRESS)
        self._new = f"inproc://gate-{id(self)}"
        self._news = context.socket(zmq.PULL)
        self._news.bind(self._new)
        self._watches: SimpleQueue[tuple[PlainSocket, bytes]] = SimpleQueue()
        """Sockets that the thread is to look at: as many as there are news."""
        threading.Thread(target=self._run, name="keys", daemon=True).start()

    def guard(self, socket: PlainSocket, tally: Tally, admits: Collection[str]) -> None:
        """Has a socket that is about to be bound admit the keys of these roles and nobody else."""
        domain = b"%d" % len(self._doors)
        self._doors[domain] = Door(tally, frozenset(admits))
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, self._keyring.secret)
        socket.set(zmq.ZAP_DOMAIN, domain)
        socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.monitor(_events_of(domain), WATCHED)
        self._watches.put((self._watch(domain), domain))  # made here: nothing can be made while the context ends
        with self._context.socket(zmq.PUSH) as news:
            news.set(zmq.LINGER, -1)
            news.connect(self._new)
            news.send(b"")

    def _run(self) -> None:
        """The context ends only when all its sockets are closed."""
        watched = {self._questions: b"", self._news: b""}
        try:
            while True:
                self._look(watched)
        except zmq.ContextTerminated:
            pass
        finally:
            while not self._watches.empty():
                self._take_up(watched)
            for socket in watched:
                socket.close(0)

    def _look(self, watched: dict[PlainSocket, bytes]) -> None:
        poller = zmq.Poller()
        for socket in watched:
            poller.register(socket, zmq.POLLIN)
        for socket, _ in poller.poll():
            if socket is self._questions:
                socket.send_multipart(self.answer(socket.recv_multipart()))
            elif socket is self._news:
                socket.recv()
                self._take_up(watched)
            elif not self._doors[watched[socket]].take_event(socket):
                del watched[socket]
                socket.close(0)

    def _watch(self, domain: bytes) -> PlainSocket:
        events = self._context.socket(zmq.PAIR)
        events.set(zmq.RCVHWM, 0)  # whoever has no room for events would stop ZeroMQ's own thread
        events.connect(_events_of(domain))
        return events

    def _take_up(self, watched: dict[PlainSocket, bytes]) -> None:
        events, domain = self._watches.get()
        watched[events] = domain

    def answer(self, question: list[bytes]) -> list[bytes]:
        """The answer to a question, as the ZAP protocol (ZeroMQ RFC 27) has them."""
        version, request, domain, _, _, mechanism, *credentials = question
        assert (version, mechanism, len(credentials)) == (b"1.0", b"CURVE", 1), "no other sockets ask here"
        status, role = self._decide(self._doors[domain], z85.encode(credentials[0]).decode())
        return [version, request, status, b"", role.encode(), b""]

    def _decide(self, door: "Door", public: str) -> tuple[bytes, str]:
        try:
            key = self._keyring.find(public)
        except ConfigError as error:
            door.refuse("nobody can be known", str(error))
            return TRY_AGAIN, ""
        if key is None:
            door.refuse("an unknown key", f"no public file has the key {public}")
            return REFUSED, ""
        if key.role not in door.admits:
            admitted = ", ".join(sorted(door.admits))
            door.refuse(f"key {key.name}", f"its role is {key.role}; admitted are {admitted}")
            return REFUSED, ""
        return ADMITTED, key.role


class Door:
    """One listening socket: whom it admits, and what became of those whom it does not."""

    def __init__(self, tally: Tally, admits: frozenset[str]) -> None:
        self._tally = tally
        self.admits = admits

    def refuse(self, who: str, why: str) -> None:
        """Counts one refusal."""
        self._tally.refuse(who, why)

    def take_event(self, events: PlainSocket) -> bool:
        """Counts those whose handshake failed before there was a key to ask about; False when there will be no more."""
        event = recv_monitor_message(events)
        if event["event"] == zmq.EVENT_MONITOR_STOPPED:
            return False
        if event["event"] == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self.refuse("a peer that leaves before it has shown a key", "it may have none, or only look for open ports")
        elif event["value"] == MISMATCH:
            self.refuse("a peer without CURVE", "it has no keys, or is no part of actorlm")
        else:
            self.refuse("a peer that fails the handshake", "it has another key for this server, or sends nonsense")
        return True


def _events_of(domain: bytes) -> str:
    return f"inproc://gate-events-{domain.decode()}"
