"""Trees of several hosts, which are loopback addresses of this machine."""

import random
import signal
import socket
import tomllib

import httpx
import pytest
from hostile import network_sockets
from test_life_stop import DRAINED, assert_ended, send
from tree import in_parallel, until

from actorlm import make_keys
from actorlm.topology import Role

HEARTBEAT_S = 2
PORTS = {"ports": "29100-29149"}
QUICK = ("--heartbeat-timeout-s", HEARTBEAT_S)


@pytest.fixture
def deployment(tmp_path):
    """Writes a file of hosts 127.0.0.1, 127.0.0.2, ... with ports that are likely to be free."""

    def write(hosts, name="deployment.toml", **sections):
        first = random.randrange(100, 300) * 100
        sections = {"model": {"model_impl": "null"}, "sockets": {"ports": f"{first}-{first + 49}"}} | sections
        for number, (host, fields) in enumerate(hosts.items(), 1):
            sections[f"hosts.{host}"] = {"address": f"127.0.0.{number}", "devices": [0]} | fields
        return _write(tmp_path / name, sections)

    return write


def _write(path, sections):
    lines = []
    for section, fields in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_toml(value)}" for key, value in fields.items()]
    path.write_text("\n".join(lines))
    return path


def _toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).replace("'", '"')


@pytest.fixture
def up(start):
    """Starts one host of a file, not ready yet."""
    return lambda file, host, *more, **options: start(file, "--on", host, *QUICK, *more, ready=False, **options)


def _ask_all(tree, count=8):
    for number in range(count):
        tree.text(f"number {number}", max_tokens=4)


def _ports(tree, file, address):
    """The ports that a host's tree listens at, beside HTTP's: of the file's, at this address alone (e02)."""
    sockets = network_sockets(tree)
    assert {(protocol, host) for protocol, host, _ in sockets} == {("tcp", address)}
    ports = {port for *_, port in sockets} - {tree.port}
    first, last = map(int, tomllib.loads(file.read_text())["sockets"]["ports"].split("-"))
    assert ports <= set(range(first, last + 1))
    return ports


def _status(tree, path="/ready"):
    try:
        return tree.client.get(path).status_code
    except httpx.HTTPError:
        return 0


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_two_hosts_serve_whoever_starts_first(deployment, up, order):
    file = deployment({"a": {}, "b": {}}, parallel={"data": 2})
    trees = {}
    for host in order:
        trees[host] = up(file, host)
    a, b = trees["a"].wait_ready(), trees["b"]
    _ask_all(a)
    assert a.pid("engine-0")
    assert b.pid("engine-1")
    assert set(b.processes().values()) == {"actorlm host b", "actorlm engine-1"}
    assert b.stop() == (0, {})
    until(lambda: "lost host b: it was told to leave; with it engine-1" in a.log, 5)
    _ask_all(a)
    assert a.stop() == (0, {})


def test_a26_a_missing_host_is_named_with_what_to_run_there_until_the_start_times_out(deployment, up):
    file = deployment({"a": {}, "b": {}}, parallel={"data": 2})
    a = up(file, "a", "--start-timeout-s", "14")
    until(lambda: _status(a) == 503, 10)
    assert a.wait() == 1
    assert a.log.count(f"waiting for host b: run `actorlm up {file} --on b` on 127.0.0.2") >= 2, "every ten seconds"
    assert "not ready after 14 s: engine-1" in a.log.splitlines()[-1]
    assert a.processes() == {}


def test_a11_a_lead_that_waits_for_a_host_is_told_to_stop(deployment, up):
    first = random.randrange(100, 300) * 100
    file = deployment({"a": {}, "b": {}}, parallel={"data": 2}, sockets={"ports": f"{first}-{first + 9}"})
    a = up(file, "a")
    until(lambda: "waiting for host b" in a.log, 10)
    send(a, signal.SIGTERM)
    assert_ended(a, DRAINED, 5)
    for port in range(first, first + 10):
        socket.create_server(("127.0.0.1", port)).close()


def test_a26_a_host_without_its_lead_ends_at_the_start_timeout(deployment, up):
    file = deployment({"a": {}, "b": {}}, parallel={"data": 2})
    b = up(file, "b", "--start-timeout-s", "2")
    assert b.wait() == 1
    assert b.log.splitlines()[-1] == (
        f"actorlm: no lead within 2 s (--start-timeout-s): host a, `actorlm up {file} --on a` on 127.0.0.1"
    )


def test_a_host_that_dies_takes_its_own_replicas_alone_and_rejoins(deployment, up):
    file = deployment({"a": {}, "b": {}, "c": {}}, parallel={"data": 3})
    a, b, c = (up(file, host) for host in "abc")
    a.wait_ready()
    kept = {a.pid("engine-0"), c.pid("engine-2")}
    for times in (1, 2):
        _die(a, b, times)
        _ask_all(a)
        assert _status(a, "/health") == 200
        b = up(file, "b")
        _wait_for(a, "ready again", times)
        assert b.pid("engine-1")
    assert {a.pid("engine-0"), c.pid("engine-2")} == kept
    assert a.stop() == (0, {})


def _die(lead, host, times):
    host.process.kill()
    _wait_for(lead, "lost host b", times)
    until(lambda: not host.processes(), 10)


def _wait_for(tree, line, times=1):
    until(lambda: tree.log.count(line) == times, 15)


def test_a_silent_host_is_lost_and_ends_its_processes_before_it_rejoins(deployment, up):
    file = deployment({"a": {}, "b": {}}, parallel={"data": 2})
    a, b = up(file, "a"), up(file, "b")
    a.wait_ready()
    first = b.pid("engine-1")
    b.signal_all(signal.SIGSTOP)
    until(lambda: "lost host b: it is unreachable" in a.log, 10)
    _ask_all(a)
    b.signal_all(signal.SIGCONT)
    until(lambda: "ready again" in a.log, 15)
    assert b.pid("engine-1") != first
    _ask_all(a)
    assert "--max-restarts" not in a.log


def test_hosts_wait_for_a_lead_that_dies_and_serve_the_next_one(deployment, up):
    file = deployment({"a": {}, "b": {}}, parallel={"data": 2})
    a, b = up(file, "a"), up(file, "b")
    a.wait_ready()
    first = b.pid("engine-1")
    a.process.kill()
    until(lambda: first not in b.processes(), 10)
    again = up(file, "a", port=a.port).wait_ready()
    _ask_all(again)
    assert again.stop() == (0, {})
    until(lambda: set(b.processes().values()) == {"actorlm host b"}, 10)
    assert b.stop(signal.SIGINT) == (130, {})


def test_a_replica_that_spans_hosts_restarts_as_one(deployment, up):
    file = deployment({"a": {}, "b": {}}, parallel={"tensor": 2})
    a, b = up(file, "a"), up(file, "b")
    a.wait_ready()
    assert "the tensor ranks of engine-0, stage 0, are on hosts a, b" in a.log
    _ask_all(a)
    before = {a.pid("worker-0-0"), b.pid("worker-0-1")}
    b.kill("worker-0-1")
    until(lambda: "ready again" in a.log, 15)
    assert not before & {a.pid("worker-0-0"), b.pid("worker-0-1")}
    assert "lost worker-0-1" in a.log
    assert "killed by SIGKILL" in a.log
    _ask_all(a)


def test_a_host_may_have_replicas_and_no_http_and_another_http_alone(deployment, up):
    file = deployment({"a": {"http": False, "devices": [0, 1]}, "b": {"http": True, "devices": []}})
    a, b = up(file, "a"), up(file, "b")
    b.wait_ready()
    _ask_all(b)
    assert _status(a) == 0
    assert set(b.processes().values()) == {"actorlm host b", "actorlm frontend-0", "actorlm detokenizer-0"}


def test_a_host_with_http_finishes_its_streams_before_it_leaves_and_holds_up_nobody_when_it_is_gone(deployment, up):
    hosts = {"a": {"http": True}, "b": {"http": True, "devices": []}}
    file = deployment(hosts, model={"model_impl": "null", "null_step_ms": 20.0})
    a, b = up(file, "a"), up(file, "b", "--host", "127.0.0.2")
    a.wait_ready()
    b.client.base_url = f"http://127.0.0.2:{b.port}"
    assert _ports(a, file, "127.0.0.1")
    assert _ports(b, file, "127.0.0.2")
    expected = a.streamed_text("hello", max_tokens=100, temperature=0)
    (told,) = in_parallel([lambda: _told_to_leave(b)])
    assert told == expected
    assert b.wait() == 0
    _wait_for(a, "lost host b: it was told to leave")
    a.kill("engine-0")
    _wait_for(a, "lost engine-0")
    body = {"model": a.model, "prompt": "hello", "max_tokens": 4}
    until(lambda: a.post("/v1/completions", body).status_code == 200, 20)


def _told_to_leave(tree):
    """A stream that has begun when its host is told to leave."""
    text = ""
    for event in tree.events("/v1/completions", {"prompt": "hello", "max_tokens": 100, "temperature": 0}):
        if not text:
            tree.process.send_signal(signal.SIGTERM)
        text += event["choices"][0]["text"]
    return text


@pytest.mark.parametrize(
    ("sections", "flags", "said"),
    [
        ({"parallel": {"data": 2, "tensor": 2}}, (), "parallel.tensor is 2 there and 1 on the lead"),
        ({"parallel": {"data": 2}}, ("--max-model-len", "99"), "model.max_model_len is 99 there and "),
        ({"parallel": {"data": 2}}, ("--dtype", "bfloat16"), "model.dtype is bfloat16 there and auto on the lead"),
    ],
)
def test_a28_another_configuration_is_refused_by_name_with_both_values(deployment, up, sections, flags, said):
    ports = {"sockets": PORTS}
    devices = {"a": {"devices": [0, 1]}, "b": {"devices": [0, 1]}}
    a = up(deployment(devices, parallel={"data": 2}, **ports), "a")
    b = up(deployment(devices, name="other.toml", **ports, **sections), "b", *flags)
    assert b.wait() == 2
    assert f"actorlm: host b does not fit: {said}" in b.log.splitlines()[-1]
    until(lambda: said in a.log, 5)
    assert a.stop(signal.SIGINT) == (130, {})


def test_a25_two_agents_of_one_host_are_told_of_each_other(deployment, up):
    file = deployment({"a": {}, "b": {}}, parallel={"data": 2})
    a, b = up(file, "a"), up(file, "b")
    a.wait_ready()
    other = up(file, "b")
    assert other.wait() == 2
    last = other.log.splitlines()[-1]
    assert "host b is here already" in last
    assert f"pid {b.process.pid} " in last
    assert f"pid {other.process.pid} " in last
    _ask_all(a)


def test_hosts_with_keys_have_those_of_their_roles(deployment, up, tmp_path):
    make_keys.make(tmp_path / "all", [role for role in Role if role is not Role.CLIENT])
    for name, roles in {"a": ("supervisor", "balancer", "frontend", "detokenizer"), "b": ("host", "engine")}.items():
        make_keys.share(tmp_path / "all", tmp_path / f"keys-{name}", roles)
    hosts = {"a": {"devices": []}, "b": {}}
    a, b = (up(deployment(hosts, sockets=PORTS), name, "--keys", tmp_path / f"keys-{name}") for name in "ab")
    a.wait_ready()
    _ask_all(a)
    assert b.pid("engine-0")
    stranger = up(deployment(hosts, sockets=PORTS), "b", "--start-timeout-s", "30")
    assert stranger.wait() == 2, "it has no key"
    assert "one has keys and the other has none" in stranger.log.splitlines()[-1]
    assert "lost host" not in a.log


@pytest.mark.parametrize(
    ("hosts", "arguments", "said"),
    [
        ({"a": {}, "b": {}}, (), "say which of them this is: --on HOST"),
        ({"a": {}, "b": {}}, ("--on", "B"), "--on B is none of the file's hosts a, b"),
        ({}, ("--on", "a"), "the file has no hosts"),
        ({"a": {"address": "no.such.host.invalid"}}, ("--on", "a"), "hosts.a.address is 'no.such.host.invalid'"),
        ({"a": {"address": "192.0.2.7"}}, ("--on", "a"), "hosts.a.address is 192.0.2.7, which cannot be bound"),
        ({"a": {}, "b": {}}, ("--on", "a", "--dp", "3"), "need 3 devices, the hosts have 2 (a 1, b 1)"),
    ],
)
def test_a22_what_cannot_work_is_said_before_anything_starts(deployment, start, hosts, arguments, said):
    tree = start(deployment(hosts), *arguments, ready=False)
    assert tree.wait(10) == 2
    assert said in tree.log.splitlines()[-1]


@pytest.mark.parametrize("host", ["a", "b"])
def test_every_host_checks_what_its_own_processes_will_write(deployment, start, host):
    tree = start(deployment({"a": {}, "b": {}}), "--on", host, "--record-dir", "/proc/records", ready=False)
    assert tree.wait(10) == 2
    assert "--record-dir /proc/records: " in tree.log.splitlines()[-1]


def test_a21_a_pinned_ipv6_socket(deployment, start):
    port = random.randrange(10_000, 30_000)
    sockets = {"balancer": f"tcp://[::1]:{port}", "supervisor": f"tcp://localhost:{port + 1}"}
    tree = start(deployment({}, sockets=sockets))
    tree.sentinel()
    second = start(deployment({}, sockets=sockets), ready=False)
    assert second.wait(10) == 2
    assert f"sockets.balancer is tcp://[::1]:{port}, which cannot be bound" in second.log.splitlines()[-1]
