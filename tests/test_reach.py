"""Names become addresses, and addresses are tried, before anything starts."""

import socket
import time

import msgspec
import pytest

from actorlm import reach
from actorlm.config import Config
from actorlm.errors import ConfigError


@pytest.fixture
def names(monkeypatch):
    """Names and their addresses, in the order in which the system gives them."""
    table = {}

    def look_up(host, port, **_):
        if host not in table:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port or 0))
            for address in table[host]
        ]

    monkeypatch.setattr(reach.socket, "getaddrinfo", look_up)
    return table


def _config(a, b, **pins):
    hosts = {name: {"address": address, "devices": [0]} for name, address in {"a": a, "b": b}.items()}
    return msgspec.convert({"hosts": hosts, "pins": pins}, Config)


def test_a22_a_name_becomes_its_first_ipv4_address_or_its_first_one(names):
    names |= {"both": ["fd00::1", "10.0.0.1", "10.0.0.2"], "six": ["fd00::2", "fd00::3"]}
    config = reach.resolved(_config("both", "six", supervisor="tcp://six:7000"), "a")
    assert [host.address for host in config.hosts.values()] == ["10.0.0.1", "fd00::2"]
    assert config.pins == {"supervisor": "tcp://[fd00::2]:7000"}


def test_a22_a_name_that_leads_nowhere_is_named_with_its_key(names):
    names["here"] = ["10.0.0.1"]
    with pytest.raises(ConfigError, match=r"hosts\.b\.address is 'there', a name that cannot be resolved: Name or"):
        reach.resolved(_config("here", "there"), "a")
    with pytest.raises(ConfigError, match=r"sockets\.balancer is 'nowhere', a name"):
        reach.resolved(_config("here", "10.0.0.2", balancer="tcp://nowhere:7000"), "a")


def test_a22_a_server_of_names_that_does_not_answer_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(reach, "RESOLVE_S", 0.1)
    monkeypatch.setattr(reach.socket, "getaddrinfo", lambda *_, **__: time.sleep(1) or [])
    with pytest.raises(ConfigError, match=r"no answer within 0\.1 s"):
        reach.resolve("hosts.a.address", "slow")


def test_a_name_of_this_machines_own_that_others_cannot_use_is_refused(names):
    names["node-a"] = ["127.0.1.1"]
    with pytest.raises(
        ConfigError, match=r"hosts\.a\.address is 'node-a', which is 127\.0\.1\.1 on this machine, where"
    ):
        reach.resolved(_config("node-a", "10.0.0.2"), "a")
    assert reach.resolved(_config("127.0.0.1", "127.0.0.2"), "a").lead == "a"


def test_a22_an_address_of_another_host_is_refused_by_its_key():
    with pytest.raises(
        ConfigError, match=r"hosts\.b\.address is 192\.0\.2\.7, which cannot be bound.*is this host b\?"
    ):
        reach.check_own(_config("127.0.0.1", "192.0.2.7"), "b")
    reach.check_own(_config("127.0.0.1", "192.0.2.7"), "a")


def test_a15_an_address_that_somebody_has_is_refused_by_its_key():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            ConfigError, match=rf"sockets\.balancer is {address}, which cannot be bound: Address already"
        ):
            reach.check_free({"balancer": address}, 0)
        with pytest.raises(ConfigError, match=rf"sockets\.balancer is {address}, .*: it is http\.port;"):
            reach.check_free({"balancer": address}, taken.getsockname()[1])
    reach.check_free({"balancer": address}, 0)
    with pytest.raises(ConfigError, match="Cannot assign requested address"):
        reach.check_free({"balancer": "tcp://192.0.2.7:7000"}, 7000)


def test_a25_names_of_one_address_are_refused_by_their_keys(names):
    names |= {"one": ["10.0.0.1"], "other": ["10.0.0.1"]}
    with pytest.raises(ConfigError, match=r"hosts\.a\.address and hosts\.b\.address are both 10\.0\.0\.1"):
        reach.resolved(_config("one", "other"), "")
    pins = {"balancer": "tcp://one:7000", "supervisor": "tcp://10.0.0.1:7000"}
    with pytest.raises(ConfigError, match=r"sockets\.balancer and sockets\.supervisor are both tcp://10\.0\.0\.1:7"):
        reach.resolved(_config("10.0.0.3", "10.0.0.2", **pins), "")
