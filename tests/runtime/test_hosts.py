"""Which hosts are here, tick by tick."""

import pytest

from actorlm.runtime.hosts import Hosts


@pytest.fixture
def hosts():
    hosts = Hosts(["b", "c"], silence_ticks=3)
    hosts.came("b", "host-b-1", "pid 1 on x")
    return hosts


def test_hosts_are_missing_until_somebody_speaks_for_them(hosts):
    assert [host.name for host in hosts.missing] == ["c"]
    assert hosts.agents == ["host-b-1"]
    assert hosts.of("host-b-1").name == "b"
    assert hosts.of("") is hosts.of("host-c-1") is None
    assert "c" in hosts
    assert "a" not in hosts


def test_a_host_is_lost_after_so_many_silent_ticks_and_not_before(hosts):
    assert hosts.tick() == hosts.tick() == []
    hosts.heard("host-b-1")
    assert hosts.tick() == hosts.tick() == []
    assert [host.name for host in hosts.tick()] == ["b"]
    hosts.lost("b")
    assert [host.name for host in hosts.missing] == ["b", "c"]
    assert hosts.tick() == []


def test_what_a_lost_agent_says_is_not_heard(hosts):
    hosts.lost("b")
    hosts.heard("host-b-1")
    hosts.came("b", "host-b-2", "pid 2 on x")
    hosts.heard("host-b-1")
    assert hosts["b"].agent == "host-b-2"


def test_a25_nobody_else_speaks_for_a_host_that_is_here_and_both_are_named(hosts):
    assert hosts.claimed("b", "pid 2 on y") == "host b is here already: pid 1 on x; it cannot be pid 2 on y too"
    assert hosts.claimed("c", "pid 2 on y") == ""
    hosts.lost("b")
    assert hosts.claimed("b", "pid 2 on y") == ""
