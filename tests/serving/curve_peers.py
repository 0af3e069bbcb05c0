"""Strangers at a TCP socket: with no key, the wrong one, or another way to introduce themselves; and who belongs."""

import tomllib

import zmq
from zmq.utils.monitor import recv_monitor_message

FAILED = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)


def no_key(socket):
    """As whoever knows nothing of keys."""


def plain(socket):
    socket.plain_username, socket.plain_password = b"client", b"client"


def with_key(public, secret, server):
    """Introduces itself with this pair to a server that it believes to have that key."""

    def curve(socket):
        socket.curve_publickey, socket.curve_secretkey = public.encode(), secret.encode()
        socket.curve_serverkey = server.encode()

    return curve


def unknown_key(server):
    public, secret = (key.decode() for key in zmq.curve_keypair())
    return with_key(public, secret, server)


def key_of(directory, role, server_role):
    """The key of a role, of a directory of keys."""
    pair = tomllib.loads((directory / "secret" / f"{role}.toml").read_text())
    return with_key(pair["public"], pair["secret"], public_of(directory, server_role))


def public_of(directory, role):
    return tomllib.loads((directory / "public" / f"{role}.toml").read_text())["public"]


def comes_in(context, kind, address, prepare):
    """Whether a socket of this kind that was prepared so gets through the handshake."""
    with context.socket(kind) as socket:
        socket.linger = 0
        prepare(socket)
        events = socket.get_monitor_socket()
        socket.connect(address)
        came = False
        while events.poll(3000):
            event = recv_monitor_message(events)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED or event in FAILED:
                came = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                break
        socket.disable_monitor()
        events.close()
        return came
