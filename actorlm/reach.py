"""Names become addresses, and addresses are tried, before anything starts: what cannot work is said in seconds."""

import errno
import ipaddress
import socket
import threading
from collections.abc import Mapping

import msgspec

from actorlm.addresses import Tcp
from actorlm.config import Config
from actorlm.deployment import check_apart
from actorlm.errors import ConfigError, reason_of

RESOLVE_S = 4.0


def resolved(config: Config, on: str) -> Config:
    """The same options with numeric addresses.

    Raises ConfigError naming the key whose name leads nowhere, or the two whose names lead to the same.

    `on` is this host, whose name must lead to an address that the others can reach.
    """
    hosts = {
        name: msgspec.structs.replace(host, address=resolve(f"hosts.{name}.address", host.address))
        for name, host in config.hosts.items()
    }
    pins = {name: _resolved_pin(f"sockets.{name}", value) for name, value in config.pins.items()}
    check_apart(hosts, pins)
    beyond = [name for name, host in hosts.items() if not _is_loopback(host.address)]
    if on and on not in beyond and beyond:
        raise ConfigError(
            f"hosts.{on}.address is {config.hosts[on].address!r}, which is {hosts[on].address} on this machine, where"
            f" host {beyond[0]} cannot reach it; write the address itself"
        )
    return msgspec.structs.replace(config, hosts=hosts, pins=pins)


def _resolved_pin(key: str, value: str) -> str:
    address = Tcp.parse(key, value)
    return str(Tcp(resolve(key, address.host), address.port))


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def resolve(key: str, host: str) -> str:
    """A numeric address of a host: of a name the first IPv4 one, or the first, so that all hosts choose the same.

    Raises ConfigError naming the key, within a few seconds.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return _look_up(key, host)
    return host


def _look_up(key: str, name: str) -> str:
    found: list[str] = []
    reason = [f"no answer within {RESOLVE_S:g} s"]

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError as error:
            reason[0] = reason_of(error)
            return
        answers.sort(key=lambda answer: answer[0] != socket.AF_INET)
        found.extend(str(answer[4][0]) for answer in answers)

    thread = threading.Thread(target=ask, name=f"resolve {name}", daemon=True)
    thread.start()
    thread.join(RESOLVE_S)
    if not found:
        raise ConfigError(f"{key} is {name!r}, a name that cannot be resolved: {reason[0]}")
    return found[0]


def check_own(config: Config, on: str) -> None:
    """Raises ConfigError unless the address of the host `on` is one of this machine's."""
    address = config.hosts[on].address
    try:
        _bind(address, 0)
    except OSError as error:
        raise ConfigError(
            f"hosts.{on}.address is {address}, which cannot be bound on this machine ({socket.gethostname()}):"
            f" {reason_of(error)}; is this host {on}?"
        ) from None


def check_free(addresses: Mapping[str, str], http_port: int) -> None:
    """Raises ConfigError for a socket's address that cannot be bound here, naming it.

    HTTP has bound `http_port`, which is 0 where there is none.
    """
    for name, value in addresses.items():
        host, port = Tcp.parse(f"sockets.{name}", value)
        try:
            _bind(host, port)
        except OSError as error:
            is_ours = port == http_port and error.errno == errno.EADDRINUSE
            reason = "it is http.port" if is_ours else reason_of(error)
            raise ConfigError(
                f"sockets.{name} is {value}, which cannot be bound: {reason};"
                " choose another address, or other sockets.ports"
            ) from None


def _bind(host: str, port: int) -> None:
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
