"""What only a deployment file can say: its hosts, and the addresses of single sockets."""

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from actorlm.addresses import Tcp, parse_host
from actorlm.config import Config, HostConfig, SocketsConfig
from actorlm.errors import ConfigError

HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Deployment(NamedTuple):
    """Hosts by name, in the order of the file, and addresses by the socket's name."""

    hosts: dict[str, HostConfig]
    pins: dict[str, str]


def take_deployment(table: dict[str, Any], file: Path) -> Deployment:
    """Removes from a file's table what is no option. Raises ConfigError naming the keys that are wrong."""
    try:
        hosts = {name: _host(f"hosts.{name}", value) for name, value in _tables(table.pop("hosts", {})).items()}
        sockets = table.get("sockets", {})
        options = SocketsConfig.__struct_fields__
        names = [name for name in sockets if name not in options] if isinstance(sockets, dict) else []
        pins = {name: _pin(f"sockets.{name}", sockets.pop(name)) for name in names}
        check_apart(hosts, pins)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    return Deployment(hosts, pins)


def _tables(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"hosts is {value!r}: write a table for each host, [hosts.NAME]")
    return value


def _host(key: str, value: Any) -> HostConfig:
    if not HOST_NAME.fullmatch(key.removeprefix("hosts.")):
        raise ConfigError(f"{key}: a host's name has up to 64 letters, digits, '.', '_' and '-'")
    if not isinstance(value, dict):
        raise ConfigError(f"{key} is {value!r}: write a table for each host, [hosts.NAME]")
    for field in value:
        if field not in HostConfig.__struct_fields__:
            raise ConfigError(f"unknown key {key}.{field}{nearest(field, HostConfig.__struct_fields__, f'{key}.')}")
    if "address" not in value:
        raise ConfigError(f"{key}.address is missing: other hosts need it")
    try:
        host = msgspec.convert(value, HostConfig)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        field = path.rstrip("`").split("[")[0]
        raise ConfigError(f"{key}.{field} is {value.get(field)!r}: {reason}") from None
    if len(set(host.devices)) != len(host.devices):
        raise ConfigError(f"{key}.devices is {list(host.devices)}: it names a device twice")
    return msgspec.structs.replace(host, address=parse_host(f"{key}.address", host.address))


def _pin(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{key} is {value!r}: write tcp://HOST:PORT")
    return str(Tcp.parse(key, value))


def check_apart(hosts: Mapping[str, HostConfig], pins: Mapping[str, str]) -> None:
    """Raises ConfigError for an address that is given twice, naming both keys."""
    taken: dict[str, str] = {}
    addresses = {f"hosts.{name}.address": host.address for name, host in hosts.items()}
    for key, value in (addresses | {f"sockets.{name}": value for name, value in pins.items()}).items():
        if value in taken:
            raise ConfigError(f"{taken[value]} and {key} are both {value}; each needs an address of its own")
        taken[value] = key


def this_host(config: Config, on: str | None) -> str:
    """The host that `--on` names, or "" if the file has no hosts. Raises ConfigError unless one goes with the other."""
    if not config.hosts and on is not None:
        raise ConfigError(f"--on {on}: the file has no hosts; add [hosts.{on}], or leave it out")
    if config.hosts and on is None:
        raise ConfigError(f"the file has hosts {', '.join(config.hosts)}; say which of them this is: --on HOST")
    if on is not None and on not in config.hosts:
        raise ConfigError(f"--on {on} is none of the file's hosts {', '.join(config.hosts)}{nearest(on, config.hosts)}")
    return on or ""


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """A suggestion for a word that is not known, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""
