"""Signals: SIGTERM drains, SIGINT stops at once, a second one forces; whatever the tree is doing, nothing is left."""

import contextlib
import fcntl
import os
import re
import signal
import socket
import struct
import termios
import threading
import time

import httpx
import pytest
from exchange import PATHS, Exchange, body_of, endless
from streaming import Streaming, endings, running
from tree import PATIENCE, until

pytestmark = [pytest.mark.serving]

NULL = ("--model-impl", "null")
DRAINED, INTERRUPTED, FORCED = 0, 130, 1


def send(tree, number):
    tree.process.send_signal(number)
    return time.monotonic()


def assert_ended(tree, status, seconds):
    """With this status, in time, nothing left behind, and nothing on the screen that only a programmer reads."""
    assert tree.wait(seconds) == status, tree.log
    assert tree.processes() == {}
    assert not re.search("Traceback|ZMQError|zmq.error", tree.log), tree.log
    socket.create_server(("127.0.0.1", tree.port)).close()


@pytest.mark.parametrize(
    ("number", "options"),
    [
        (signal.SIGTERM, ()),
        (signal.SIGTERM, ("--frontends", 2, "--dp", 2, "--executor", "broadcast")),
        (signal.SIGHUP, ("--detokenizers", 2)),
    ],
    ids=["SIGTERM", "SIGTERM to many", "SIGHUP"],
)
def test_a09_a_drain_finishes_what_was_accepted(start, number, options):
    """Eight running and four waiting, of which two are not streamed; what comes later is refused at once."""
    replicas = 2 if "--dp" in options else 1
    tree = start(*NULL, "--null-step-ms", 20, "--max-num-seqs", 8 // replicas, *options)
    streams = running(tree, 8, max_tokens=100)
    waiting = [Streaming(tree, max_tokens=10, prompt=f"w{number}") for number in range(2)]
    plain = [Exchange(tree, path, body_of(tree, path, max_tokens=10, ignore_eos=True)) for path in PATHS]
    until(lambda: tree.total("num_requests_waiting") == 4, 5)
    began = send(tree, number)
    until(lambda: tree.client.get("/ready").status_code == 503, 1)
    for path in PATHS:
        refused = tree.post(path, body_of(tree, path))
        assert refused.status_code == 503, refused.text
        assert int(refused.headers["retry-after"]) > 0
    assert tree.client.get("/health").json() == {"status": "draining"}
    assert [stream.ending for stream in streams] == ["running"] * 8
    assert endings(streams + waiting) == ["done"] * 10
    assert {stream.finish for stream in streams + waiting} == {"length"}
    for exchange in plain:
        assert exchange.response.status == 200
        assert exchange.json()["usage"]["completion_tokens"] == 10
    assert_ended(tree, DRAINED, 5)
    assert time.monotonic() - began < 20, "the deadline was not waited for"


def test_a09_readiness_goes_red_before_requests_are_refused(start):
    """So load balancers have the time to notice; a second signal need not wait for it."""
    tree = start(*NULL, "--null-step-ms", 20, "--drain-delay-s", 4)
    began = send(tree, signal.SIGTERM)
    until(lambda: tree.client.get("/ready").status_code == 503, 1)
    assert tree.client.get("/health").json() == {"status": "leaving"}
    late = Streaming(tree, max_tokens=300)
    until(lambda: late.texts, 4)
    until(lambda: tree.client.get("/health").json() == {"status": "draining"}, 8)
    assert time.monotonic() - began > 3.9
    assert tree.post(PATHS[0], body_of(tree, PATHS[0])).status_code == 503
    assert late.join() == "done"
    assert_ended(tree, DRAINED, 5)


def test_a08_a_second_signal_forces_while_requests_are_still_accepted(start):
    tree = start(*NULL, "--drain-delay-s", 60)
    send(tree, signal.SIGTERM)
    until(lambda: tree.client.get("/ready").status_code == 503, 1)
    send(tree, signal.SIGTERM)
    assert_ended(tree, FORCED, 3)


def test_a09_a_drain_after_a_restart_is_a_drain(start):
    """What died and came back before has nothing to do with it."""
    tree = start(*NULL, "--null-step-ms", 20, "--frontends", 2)
    assert tree.model == "null"  # asked once, before its connection dies
    for victim in ("engine-0", "frontend-0"):
        tree.kill(victim)
        until(lambda: "ready again" in tree.log.rpartition("lost ")[2], 10)
    streams = running(tree, 4, max_tokens=50)
    send(tree, signal.SIGTERM)
    assert endings(streams) == ["done"] * 4
    assert_ended(tree, DRAINED, 5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda number: number.name)
def test_a09_a_signal_to_every_process_is_one_to_the_supervisor(start, number):
    """As an init system sends it to all of a service: nobody but the supervisor takes it for an order."""
    tree = start(*NULL, "--null-step-ms", 20, "--executor", "broadcast")
    streams = running(tree, 4, max_tokens=50)
    tree.signal_all(number)
    assert set(endings(streams)) == {"error" if number == signal.SIGINT else "done"}
    assert_ended(tree, INTERRUPTED if number == signal.SIGINT else DRAINED, 5)
    assert "lost" not in tree.log


def test_a11_a_signal_to_every_process_while_they_start(start):
    tree = start(*NULL, ready=False)
    until(lambda: "actorlm engine-0" in tree.processes().values(), 10, every=0.001)
    tree.signal_all(signal.SIGTERM)
    assert_ended(tree, DRAINED, 5)


def test_a09_an_idle_tree_drains_at_once(start):
    tree = start(*NULL)
    with httpx.Client(base_url=tree.url) as kept_alive:
        kept_alive.get("/health")
        send(tree, signal.SIGTERM)
        assert_ended(tree, DRAINED, 3)


def unread(exchange):
    """Bytes that have come and that nobody has read."""
    return struct.unpack("i", fcntl.ioctl(exchange._sock, termios.FIONREAD, bytes(4)))[0]


def test_a09_the_drain_has_a_deadline(start):
    """At which endless requests end with an error, and a client that does not read holds nobody up."""
    tree = start(*NULL, "--drain-timeout-s", 1)
    deaf = Exchange(tree, PATHS[0], endless(tree, stream=True, n=64, max_tokens=30_000))
    endless_ones = running(tree, 2, max_tokens=30_000)
    until(lambda: unread(deaf) > 100_000 and unread(deaf) == (time.sleep(0.2), unread(deaf))[1], 20)
    send(tree, signal.SIGTERM)
    assert endings(endless_ones, 5) == ["error"] * 2
    assert endless_ones[0].error["type"] == "service_unavailable_error"
    assert_ended(tree, DRAINED, 6)
    deaf.close()


@pytest.mark.parametrize(("victim", "ended"), [("engine-0", "error"), ("frontend-0", "cut")])
def test_a09_a_death_that_a_drain_cannot_repair_is_not_a_success(start, victim, ended):
    """A frontend takes along what it has accepted; a replica may not come back as often as it dies."""
    tree = start(*NULL, "--null-step-ms", 50, "--max-restarts", 0)
    streams = running(tree, 2)
    send(tree, signal.SIGTERM)
    until(lambda: tree.client.get("/ready").status_code == 503, 1)
    pid = tree.kill(victim)
    assert endings(streams) == [ended] * 2
    assert_ended(tree, 1, 5)
    assert f"{victim} (pid {pid}): killed by SIGKILL" in tree.log.splitlines()[-1]


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a08_a_second_signal_forces(start, second):
    tree = start(*NULL, "--null-step-ms", 50)
    streams = running(tree, 4)
    send(tree, signal.SIGTERM)
    until(lambda: "draining" in tree.log, 2)
    time.sleep(0.3)
    assert tree.process.poll() is None
    send(tree, second)
    assert_ended(tree, FORCED, 2)
    assert set(endings(streams, 2)) <= {"cut", "error"}


class Terminal:
    """A terminal whose foreground process group is the tree's."""

    def __init__(self, start, *arguments):
        self._master, slave = os.openpty()
        stdio = dict.fromkeys(("stdin", "stdout", "stderr"), slave)
        self._shown = b""
        self.tree = start(*arguments, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), **stdio)
        os.close(slave)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with contextlib.suppress(OSError):
            while data := os.read(self._master, 4096):
                self._shown += data

    def press(self, key):
        os.write(self._master, key)

    @property
    def shown(self):
        return self._shown.decode(errors="replace")


@pytest.mark.parametrize("whom", ["group", "supervisor"])
def test_a07_ctrl_c_stops_everybody(start, whom):
    """In a terminal the whole process group gets the signal. Streams end with an error event either way."""
    terminal = Terminal(start, *NULL, "--null-step-ms", 20, "--tp", 2)
    tree = terminal.tree
    streams = running(tree, 4)
    if whom == "group":
        terminal.press(b"\x03")
    else:
        send(tree, signal.SIGINT)
    assert endings(streams, 5) == ["error"] * 4
    assert streams[0].error["message"] == "the server is shutting down"
    assert tree.wait(9) == INTERRUPTED
    assert tree.processes() == {}
    assert "ready after" in terminal.shown
    assert "Traceback" not in terminal.shown


def test_a07_a_worker_that_does_not_listen_is_killed(start):
    """Nobody can hold up the end: not a process that stands still, and not one that computes for long."""
    tree = start(*NULL, "--null-step-ms", 60_000, "--executor", "broadcast")
    Streaming(tree)
    until(lambda: tree.total("num_requests_running") == 1, 5)
    tree.kill("detokenizer-0", signal.SIGSTOP)
    send(tree, signal.SIGINT)
    assert_ended(tree, INTERRUPTED, 9)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("moment", ["actorlm supervisor", "actorlm.process", "actorlm engine-0", "actorlm frontend-0"])
def test_a11_a_signal_while_it_starts(start, number, moment):
    """At the moments at which the first process of that title is there."""
    tree = start(*NULL, "--dp", 2, "--executor", "broadcast", ready=False)
    until(lambda: any(moment in title for title in tree.processes().values()), 10, every=0.001)
    send(tree, number)
    assert_ended(tree, DRAINED if number == signal.SIGTERM else INTERRUPTED, 5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a11_a_signal_while_weights_load(start, tiny_llama, number):
    tree = start(tiny_llama, "--executor", "broadcast", ready=False)
    until(lambda: "worker-0-0  start" in tree.log, 10)
    send(tree, number)
    assert_ended(tree, DRAINED if number == signal.SIGTERM else INTERRUPTED, 5)


def test_a11_a_signal_while_it_waits_for_what_does_not_come(start):
    """A process that stands still while it starts."""
    tree = start(*NULL, ready=False)
    until(lambda: "actorlm engine-0" in tree.processes().values(), 10, every=0.001)
    tree.kill("engine-0", signal.SIGSTOP)
    time.sleep(1)
    send(tree, signal.SIGTERM)
    assert_ended(tree, DRAINED, 5 * PATIENCE)
