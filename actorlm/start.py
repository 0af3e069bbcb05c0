"""What `actorlm up` does on every host before anything starts there, and undoes at the end.

What can be wrong with options, files, port and model is found here, in seconds.
"""

import contextlib
import signal
import socket
from collections.abc import Iterator
from typing import NamedTuple

from actorlm.addresses import bracketed, unbracketed
from actorlm.api.keys import open_keys
from actorlm.api.tls import Tls
from actorlm.checkpoint.description import ModelDescription
from actorlm.config import Config, HttpConfig
from actorlm.errors import ConfigError, reason_of
from actorlm.instance import Instance
from actorlm.planning import find_model, kernels, with_types
from actorlm.reach import resolved
from actorlm.recording.begin import check_directory
from actorlm.runtime.child import SUPERVISORS_SIGNALS
from actorlm.screen import Screen, screen_for
from actorlm.tracing import check as check_traces

BACKLOG = 2048


class Start(NamedTuple):
    """What there is of a host's part before its processes. `written` are the options before names became addresses."""

    config: Config
    written: Config
    model: ModelDescription
    listener: socket.socket | None
    screen: Screen
    instance: Instance


@contextlib.contextmanager
def started(config: Config, host: str) -> Iterator[Start]:
    """Holds the port and a run directory of `host`. Raises ActorlmError for what could not be served.

    It begins with the supervisor's signals blocked: until they are let through, the directory is sure to go.
    """
    screen = screen_for(config.observability.log_format)
    check_files(config.http)
    written, config = config, resolved(config, host)
    listener = listen(config) if config.has_http(host) else None
    try:
        check_traces(config.observability)
        if config.observability.record_dir is not None:
            check_directory(config.observability.record_dir)
        model = find_model(config, screen.bar)
        written, config = with_types(written, model), with_types(config, model)
        screen.line(f"{'kernels':>14}  {kernels(config)}")
        signal.pthread_sigmask(signal.SIG_BLOCK, SUPERVISORS_SIGNALS)
        instance = Instance.create()
        try:
            yield Start(config, written, model, listener, screen, instance)
        finally:
            instance.close()
    finally:
        screen.close()
        if listener is not None:
            listener.close()


def check_files(http: HttpConfig) -> None:
    """Reads what frontends will read. Raises ConfigError for what they could not use."""
    open_keys(http)
    Tls.of(http)


def listen(config: Config) -> socket.socket:
    """The HTTP socket, held by the supervisor so that frontends share it and a restart refuses nobody."""
    host, port = unbracketed(config.http.host), config.http.port
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {url(config.http, port)}: {reason_of(error)}; choose another --host or --port"
        ) from None
    sock.setblocking(False)
    return sock


def url(http: HttpConfig, port: int, host: str = "") -> str:
    """The service's address as a URL, on the host of these options or another one."""
    scheme = "http" if http.tls_certificate is None else "https"
    return f"{scheme}://{bracketed(host or http.host)}:{port}"
