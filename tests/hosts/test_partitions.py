"""Hosts that die, or cannot reach each other, in network namespaces."""

import threading
import time

import pytest
from disturbed import SLOW, streams, texts
from tree import until


def _two(up, text="[parallel]\ndata = 2\n"):
    up.write({"a": "devices = [0]", "b": "devices = [0]"}, text)
    a, b = up("a"), up("b")
    return a.wait_ready(), b


def _ask_all(tree, expected=None):
    texts = [tree.text(f"number {number}", max_tokens=4, temperature=0) for number in range(8)]
    assert expected is None or texts == expected
    return texts


def test_two_hosts_serve(up):
    a, b = _two(up)
    _ask_all(a)
    assert a.pid("engine-0")
    assert b.pid("engine-1")
    assert b.stop() == (0, {})
    assert a.stop() == (0, {})


def test_three_hosts_one_of_them_killed(up):
    up.write(dict.fromkeys("abc", "devices = [0]"), "[parallel]\ndata = 3\n")
    a, b, c = up("a"), up("b"), up("c")
    texts = _ask_all(a.wait_ready())
    kept = {a.pid("engine-0"), c.pid("engine-2")}
    b.signal_all(9)
    a.wait_for("lost host b")
    _ask_all(a, texts)
    up("b")
    a.wait_for("ready again", seconds=20)
    _ask_all(a, texts)
    assert {a.pid("engine-0"), c.pid("engine-2")} == kept


def test_a26_hosts_that_are_cut_off_from_the_start_name_each_other(up, network):
    network.cut("a", "b")
    up.write({"a": "devices = [0]", "b": "devices = [0]"}, "[parallel]\ndata = 2\n")
    a, b = up("a"), up("b")
    a.wait_for("waiting for host b: run `actorlm up")
    b.wait_for("waiting for the lead, host a, `actorlm up")
    assert a.client.get("/ready").status_code == 503
    network.heal("a", "b")
    _ask_all(a.wait_ready())


def test_a_short_partition_loses_no_host(up, network):
    a, b = _two(up)
    texts = _ask_all(a)
    engine = b.pid("engine-1")
    network.cut("a", "b")
    time.sleep(5)
    network.heal("a", "b")
    _ask_all(a, texts)
    assert "lost host" not in a.log
    assert b.pid("engine-1") == engine


@pytest.mark.timeout(300)
def test_a_long_partition_ends_what_was_cut_off_and_nothing_is_served_twice(up, network):
    a, b = _two(up)
    texts = _ask_all(a)
    engine = b.pid("engine-1")
    network.cut("a", "b")
    started = time.monotonic()
    a.wait_for("lost host b: it is unreachable", seconds=20)
    assert time.monotonic() - started < 20
    _ask_all(a, texts)
    until(lambda: set(b.processes().values()) == {"actorlm host b"}, 20)
    time.sleep(max(0.0, 60 - (time.monotonic() - started)))
    before = a.total("request_success_total")
    assert "waiting for host b: run `actorlm up" in a.log
    assert "waiting for the lead, host a, `actorlm up" in b.log
    network.heal("a", "b")
    a.wait_for("ready again", seconds=30)
    assert b.pid("engine-1") != engine
    _ask_all(a, texts)
    assert a.total("request_success_total") == before + len(texts)
    assert "--max-restarts" not in a.log


@pytest.mark.timeout(300)
def test_streams_go_on_when_the_host_that_computes_them_is_cut_off(up, network):
    up.write({"a": "devices = [0]", "b": "devices = [0]"}, "[parallel]\ndata = 2\n", model=SLOW)
    a, _ = up("a"), up("b")
    a.wait_ready()
    with streams(a) as expected:
        network.cut("a", "b")
    assert "lost host b: it is unreachable" in a.log
    network.heal("a", "b")
    a.wait_for("ready again", seconds=30)
    assert texts(a) == expected
    assert a.total("request_success_total") == 8 + 2 * len(expected)


def test_a_slow_wire_that_loses_packets(up, network):
    network.say("delay", 50)
    network.say("lose", 0.01)
    a, _ = _two(up)
    texts = _ask_all(a)
    streams = [threading.Thread(target=_ask_all, args=(a, texts)) for _ in range(4)]
    for stream in streams:
        stream.start()
    for stream in streams:
        stream.join()
    assert "lost" not in a.log


def test_ipv6_and_several_addresses_of_a_host(up, network):
    up.write(
        {"a": "devices = [0]", "b": "devices = [0]"},
        "[parallel]\ndata = 2\n",
        addresses={"a": "fd77::1", "b": "[fd77::2]"},
    )
    a, b = up("a"), up("b")
    _ask_all(a.wait_ready())
    assert b.pid("engine-1")
