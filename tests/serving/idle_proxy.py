"""A proxy before a server, of the kind that takes a connection on which nothing moves for a broken one."""

import contextlib
import select
import socket
import threading


@contextlib.contextmanager
def proxied(port, idle_s):
    """The port of a proxy to `port` on the loopback, which closes a connection that is silent for `idle_s` seconds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_serve, args=(server, port, idle_s), daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def _serve(server, port, idle_s):
    with contextlib.suppress(OSError):  # it is shut down
        while True:
            client, _ = server.accept()
            threading.Thread(target=_carry, args=(client, port, idle_s), daemon=True).start()


def _carry(client, port, idle_s):
    with client, socket.create_connection(("127.0.0.1", port)) as upstream, contextlib.suppress(ConnectionError):
        other = {client: upstream, upstream: client}
        while ready := select.select([*other], [], [], idle_s)[0]:
            for one in ready:
                piece = one.recv(1 << 16)
                if not piece:
                    return
                other[one].sendall(piece)
