"""TCP addresses as people write them: hosts, ports and `tcp://` sockets. Pure; nothing is resolved here."""

import ipaddress
import re
from typing import NamedTuple, Self

from actorlm.errors import ConfigError

TCP = "tcp://"
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*\.?")
HIGHEST_PORT = 65_535


class Tcp(NamedTuple):
    """`host` is an IPv4 or IPv6 address without brackets, or a name."""

    host: str
    port: int

    @classmethod
    def parse(cls, key: str, value: str) -> Self:
        """Reads `tcp://HOST:PORT`. Raises ConfigError naming the key."""
        host, colon, port = value.removeprefix(TCP).rpartition(":")
        if not value.startswith(TCP) or not colon or not port.isdecimal() or not 0 < int(port) <= HIGHEST_PORT:
            raise ConfigError(f"{key} is {value!r}: write tcp://HOST:PORT, with a port from 1 to {HIGHEST_PORT}")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise ConfigError(f"{key} is {value!r}: an IPv6 address needs brackets, as in tcp://[::1]:7000")
        return cls(parse_host(key, host), int(port))

    def __str__(self) -> str:
        return f"{TCP}{bracketed(self.host)}:{self.port}"


def parse_host(key: str, value: str) -> str:
    """An address or a name, without brackets. Raises ConfigError naming the key."""
    host = unbracketed(value)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if value != host or not NAME.fullmatch(host) or host.replace(".", "").isdecimal():
            raise ConfigError(f"{key} is {value!r}: write an IPv4 or IPv6 address or a name, without a port") from None
        return host.lower()
    if address.is_unspecified or address.is_multicast:
        raise ConfigError(f"{key} is {value!r}: name one address of the host; others must know where to connect")
    return str(address)


def parse_ports(key: str, value: str) -> range:
    """The ports of `FIRST-LAST`, both included. Raises ConfigError naming the key."""
    first, last = (int(number) for number in value.split("-"))
    if not 0 < first <= last <= HIGHEST_PORT:
        raise ConfigError(f"{key} is {value!r}: write FIRST-LAST, with ports from 1 to {HIGHEST_PORT}")
    return range(first, last + 1)


def bracketed(host: str) -> str:
    """As it is written before a port."""
    host = unbracketed(host)
    return f"[{host}]" if ":" in host else host


def unbracketed(host: str) -> str:
    """As it is resolved."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host
