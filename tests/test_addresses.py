"""TCP addresses as people write them."""

import pytest

from actorlm.addresses import Tcp, bracketed, parse_host, parse_ports, unbracketed
from actorlm.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("tcp://10.0.0.1:7000", "10.0.0.1", 7000),
        ("tcp://[::1]:7001", "::1", 7001),
        ("tcp://[FE80:0::1]:1", "fe80::1", 1),
        ("tcp://Node-a.example:65535", "node-a.example", 65535),
    ],
)
def test_a21_an_address_is_read_and_written_with_brackets_where_it_needs_them(text, host, port):
    address = Tcp.parse("sockets.x", text)
    assert address == (host, port)
    assert Tcp.parse("again", str(address)) == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tcp://::1:7000", "needs brackets, as in"),
        ("10.0.0.1:7000", "write tcp://HOST:PORT"),
        ("tcp://10.0.0.1", "write tcp://HOST:PORT"),
        ("tcp://10.0.0.1:0", "a port from 1 to 65535"),
        ("tcp://10.0.0.1:65536", "a port from 1 to 65535"),
        ("tcp://*:7000", "an IPv4 or IPv6 address or a name"),
        ("tcp://0.0.0.0:7000", "name one address"),
        ("tcp://[::]:7000", "name one address"),
        ("ipc:///tmp/x", "write tcp://HOST:PORT"),
    ],
)
def test_what_is_no_address_is_named_with_its_key(text, reason):
    with pytest.raises(ConfigError, match=rf"sockets\.x is .*{reason}"):
        Tcp.parse("sockets.x", text)


@pytest.mark.parametrize("text", ["10.0.0.1", "::1", "[::1]", "node-a", "a.b.c"])
def test_hosts_are_addresses_or_names(text):
    assert parse_host("hosts.a.address", text) == text.strip("[]")


@pytest.mark.parametrize("text", ["10.0.0.1:7000", "tcp://10.0.0.1", "10.0.0", "", "a b", "[node]", "0.0.0.0"])
def test_what_is_no_host_is_named_with_its_key(text):
    with pytest.raises(ConfigError, match=r"hosts\.a\.address is"):
        parse_host("hosts.a.address", text)


def test_ports_are_both_ends_and_all_between():
    assert list(parse_ports("sockets.ports", "7000-7002")) == [7000, 7001, 7002]
    for wrong in ("2-1", "0-5", "1-65536"):
        with pytest.raises(ConfigError, match=f"sockets.ports is '{wrong}'"):
            parse_ports("sockets.ports", wrong)


@pytest.mark.parametrize("text", ["::1", "[::1]"])
def test_a21_brackets_may_be_there_already(text):
    assert (bracketed(text), unbracketed(text)) == ("[::1]", "::1")
