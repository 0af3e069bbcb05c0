"""Hosts and pinned addresses come from the file, and what is wrong there is named with its key."""

import pytest

from actorlm.errors import ConfigError
from actorlm.options import merge

TWO = """
[hosts.a]
address = "10.0.0.1"
devices = [0, 1]
[hosts.b]
address = "[fd00::2]"
devices = [3]
http = true
"""


@pytest.fixture
def read(tmp_path):
    def read(text):
        file = tmp_path / "deployment.toml"
        file.write_text(text)
        return merge({}, {}, file)

    return read


def test_hosts_in_the_order_of_the_file(read):
    config = read(TWO + '[sockets]\nports = "7100-7199"\nsupervisor = "tcp://10.0.0.1:9000"\n')
    assert list(config.hosts) == ["a", "b"]
    assert config.lead == "a"
    assert [host.address for host in config.hosts.values()] == ["10.0.0.1", "fd00::2"]
    assert config.hosts["b"].devices == (3,)
    assert [config.has_http(name) for name in config.hosts] == [True, True]
    assert config.sockets.ports == "7100-7199"
    assert config.pins == {"supervisor": "tcp://10.0.0.1:9000"}


def test_without_hosts_there_is_one_machine_with_http(read):
    config = read("")
    assert (config.hosts, config.pins, config.lead) == ({}, {}, "")
    assert config.has_http("")


def test_the_first_host_alone_has_http_unless_it_is_said(read):
    config = read(TWO.replace("http = true", ""))
    assert [config.has_http(name) for name in config.hosts] == [True, False]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[hosts.a]\ndevices = [0]", "hosts.a.address is missing"),
        ('[hosts.a]\naddress = "10.0.0.1:7000"', r"hosts\.a\.address is '10.0.0.1:7000'.*without a port"),
        ('[hosts.a]\naddress = "10.0.0.1"\ndevice = [1]', r"hosts\.a\.device; did you mean hosts\.a\.devices"),
        ('[hosts.a]\naddress = "10.0.0.1"\ndevices = 4', r"hosts\.a\.devices is 4"),
        ('[hosts.a]\naddress = "10.0.0.1"\ndevices = [-1]', r"hosts\.a\.devices is \[-1\]"),
        ('[hosts.a]\naddress = "10.0.0.1"\ndevices = [1, 1]', r"hosts\.a\.devices .* twice"),
        ('[hosts.a]\naddress = "10.0.0.1"\nhttp = "yes"', r"hosts\.a\.http is 'yes'"),
        ("[hosts]\na = 1", r"hosts\.a is 1"),
        ("hosts = 1", "hosts is 1"),
        ('[hosts."a b"]\naddress = "10.0.0.1"', "hosts.a b: a host's name"),
        ("[sockets]\nsupervisor = 7000", r"sockets\.supervisor is 7000"),
        ('[sockets]\nsupervisor = "tcp://::1:7000"', r"sockets\.supervisor is .*brackets"),
        ('[sockets]\nports = "7000"', "sockets.ports.*'7000'"),
        (TWO.replace("[fd00::2]", "10.0.0.1"), r"hosts\.a\.address and hosts\.b\.address are both 10\.0\.0\.1"),
        (
            '[sockets]\nsupervisor = "tcp://[::1]:7000"\nbalancer = "tcp://[0::1]:7000"',
            r"sockets\.supervisor and sockets\.balancer are both tcp://\[::1\]:7000",
        ),
    ],
)
def test_a15_a25_what_is_wrong_is_named_with_its_key(read, text, reason):
    with pytest.raises(ConfigError, match=reason):
        read(text)
