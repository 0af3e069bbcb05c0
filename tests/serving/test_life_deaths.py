"""Processes that die or stand still: they come back, and what they worked on goes on as if nothing had happened."""

import os
import re
import shutil
import signal
import time

import httpx
import pytest
from exchange import PATHS, body_of
from streaming import Streaming, assert_undisturbed, endings, running
from tree import PATIENCE, until

pytestmark = [pytest.mark.serving]

NULL = ("--model-impl", "null")
REPLICA = ["engine-0", "worker-0-0"]
ROLES = ["frontend-0", "balancer", "detokenizer-0", *REPLICA]


@pytest.fixture(scope="module")
def tree(tree_of):
    """Every role in a process of its own; it outlives all the deaths of this file."""
    return tree_of(*NULL, "--null-step-ms", 20, "--executor", "broadcast", "--max-restarts", 1000)


@pytest.fixture(scope="module")
def watched_tree(tree_of):
    """The same with less patience."""
    return tree_of(
        *NULL, "--null-step-ms", 20, "--executor", "broadcast", "--max-restarts", 1000, "--heartbeat-timeout-s", 4
    )


def pids(tree):
    """{actor: pid} without the supervisor."""
    return {title.split()[1]: pid for pid, title in tree.processes().items() if title != "actorlm supervisor"}


def held(tree, name, dead):
    """Stops the successor of a dead process before it is ready; returns its pid."""
    found = until(lambda: {pid for found, pid in pids(tree).items() if found == name and pid != dead}, 5, every=0.001)
    os.kill(*found, signal.SIGSTOP)
    return found.pop()


def until_whole_again(tree, seconds=10, *, settled=True):
    until(lambda: tree.client.get("/ready").json().get("status") == "ready", seconds)
    tree.sentinel()
    if settled:
        tree.settled()


class Poller:
    """Asks for health, readiness, the models and a completion until told that the tree is whole; nothing may hang."""

    LIMIT_S = 10

    def __init__(self, tree):
        self._tree = tree
        self.statuses = []

    def once(self):
        """Asks for everything once; whether all was well. A refused connection is an answer too."""
        with httpx.Client(base_url=self._tree.url, timeout=self.LIMIT_S * PATIENCE) as client:
            try:
                asked = [client.get(path).status_code for path in ("/health", "/ready", "/v1/models")]
                asked.append(client.post(PATHS[0], json=body_of(self._tree, PATHS[0], max_tokens=2)).status_code)
            except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError, KeyError):
                return False
        self.statuses += asked
        return asked == [200] * 4


@pytest.mark.parametrize("victim", ROLES)
def test_a02_a38_a_role_dies(tree, victim):
    """With streams running. Health is red for as long as it is away; who asks gets an answer or a 5xx, and soon all is
    well. A frontend alone is missed by nobody: connections wait for the next one."""
    streams = running(tree, 4, max_tokens=150)
    before = pids(tree)
    tree.kill(victim)
    if victim != "frontend-0":
        successor = held(tree, victim, before[victim])
        until(lambda: tree.client.get("/health").status_code == 503, 10)
        os.kill(successor, signal.SIGCONT)
    poller = Poller(tree)
    until(lambda: pids(tree).get(victim, before[victim]) != before[victim], 10)
    until(poller.once, 10, every=0.2)
    assert set(poller.statuses) <= {200, 503}
    until_whole_again(tree, settled=False)
    if victim == "frontend-0":
        assert set(endings(streams, 10)) == {"cut"}
    else:
        assert_undisturbed(streams)
    tree.settled()
    replaced = set(REPLICA) if victim in REPLICA else {victim}
    assert {name for name, pid in pids(tree).items() if pid != before[name]} == replaced
    assert not {before[name] for name in replaced} & set(tree.processes()), "nobody outlives its replica (a04)"
    assert f"lost {victim} (pid {before[victim]}): killed by SIGKILL" in tree.log


@pytest.mark.parametrize("victims", [*([role] for role in ROLES), ROLES], ids=[*ROLES, "everybody"])
def test_a02_a_role_stands_still(watched_tree, victims):
    """The process is there and does nothing; its silence is noticed within the documented time. Who asks meanwhile gets
    an answer or a 5xx."""
    tree = watched_tree
    streams = running(tree, 4, max_tokens=150)
    before, poller = pids(tree), Poller(tree)
    for victim in victims:
        tree.kill(victim, signal.SIGSTOP)

    def are_replaced():
        poller.once()
        return all(pids(tree).get(victim, before[victim]) != before[victim] for victim in victims)

    until(are_replaced, 8, every=0.2)
    until(poller.once, 10, every=0.2)
    assert set(poller.statuses) <= {200, 503}
    until_whole_again(tree, settled=False)
    if "frontend-0" in victims:
        assert set(endings(streams, 10)) == {"cut"}
    else:
        assert_undisturbed(streams)
    tree.settled()
    lost = {
        victim: re.search(rf"lost {victim} \(pid {before[victim]}\): killed by SIGKILL \(silent for", tree.log)
        for victim in victims
    }
    assert all(found for victim, found in lost.items() if victim not in REPLICA or len(victims) == 1)
    assert any(lost.values()), "one of a replica is the cause, the other ends with it"


def test_a02_a_stopped_and_continued_machine_is_not_a_stall(watched_tree):
    """The watcher counts its own ticks: what stood still with it is not blamed."""
    tree = watched_tree
    streams = running(tree, 2, max_tokens=200)
    before = tree.processes()
    for number in (signal.SIGSTOP, signal.SIGCONT):
        tree.signal_all(number)
        time.sleep(5 if number == signal.SIGSTOP else 0)
    assert endings(streams) == ["done"] * 2
    assert tree.processes() == before
    until_whole_again(tree)


def test_a42_requests_while_an_engine_restarts(tree):
    """Sent all the time, streamed and not: every one that is accepted ends with its tokens, the others are refused."""
    asked = running(tree, 2, max_tokens=30)
    before = pids(tree)["engine-0"]
    tree.kill("engine-0")
    while pids(tree).get("engine-0", before) == before or tree.client.get("/ready").status_code != 200:
        asked += [Streaming(tree, max_tokens=3, prompt=f"{len(asked)}", stream=stream) for stream in (True, False)]
        time.sleep(0.02)
    asked += [Streaming(tree, max_tokens=3, prompt=f"{len(asked)}", stream=stream) for stream in (True, False)]
    assert len(asked) > 6
    for one in asked:
        assert one.join(10) in ("done", "error")
        assert one.status == (200 if one.ending == "done" else 503)
    until_whole_again(tree)
    assert_undisturbed([one for one in asked if one.status == 200])


@pytest.mark.parametrize("victim", ROLES)
def test_a01_an_unrepaired_death_is_a_failure(start, victim):
    """The last line names role, rank, pid and signal."""
    tree = start(*NULL, "--executor", "broadcast", "--max-restarts", 0)
    pid = tree.kill(victim, signal.SIGSEGV)
    assert tree.wait(8) == 1
    assert tree.processes() == {}
    last = tree.log.splitlines()[-1]
    assert last.startswith(f"actorlm: {victim} (pid {pid}): killed by SIGSEGV"), tree.log
    assert "--max-restarts" in last


def test_a01_the_number_of_restarts_is_bounded(start):
    """As many as allowed, then one too many."""
    tree = start(*NULL, "--max-restarts", 2)
    for _ in range(2):
        pid = tree.kill("balancer")
        until(lambda pid=pid: pid not in tree.processes() and "actorlm balancer" in tree.processes().values(), 10)
        until(lambda: tree.client.get("/ready").status_code == 200, 10)
    tree.kill("balancer")
    assert tree.wait(8) == 1
    assert tree.processes() == {}


def assert_given_up(tree, seconds, who, why):
    """The tree ends by itself and leaves nothing; its last line tells the cause."""
    assert tree.wait(seconds) == 1
    assert tree.processes() == {}
    last = tree.log.splitlines()[-1]
    assert last.startswith(f"actorlm: {who}"), tree.log
    assert why in last


def test_a03_what_cannot_be_repaired_ends_the_tree(start, tiny_llama, tmp_path):
    """Restarts fail because the model is gone: by itself, with the reason last, not alive for ever answering 503."""
    tree = start(tiny_llama, *NULL)
    shutil.move(tiny_llama, tmp_path / "away")
    tree.kill("detokenizer-0")
    assert_given_up(tree, 15, "detokenizer-0 (pid ", "tokenizer.json")


def test_a03_a_worker_that_cannot_be_repaired_ends_the_tree(start, tiny_llama):
    """It finds no weights any more."""
    tree = start(tiny_llama, "--executor", "broadcast", "--max-restarts", 1)
    (tiny_llama / "model.safetensors").unlink()
    tree.kill("worker-0-0")
    assert_given_up(tree, 30, "", "safetensors")


def test_a03_a_restart_that_never_gets_ready_is_a_death(start):
    tree = start(*NULL, "--start-timeout-s", 8)
    stuck = held(tree, "engine-0", tree.kill("engine-0"))
    until(lambda: f"lost engine-0 (pid {stuck}): killed by SIGKILL (not ready after 8 s" in tree.log, 12)
    until_whole_again(tree)


def test_one_of_two_replicas_dies(start):
    """An engine and its worker restart as one; no stream of either replica notices. (Case A29.)"""
    tree = start(*NULL, "--null-step-ms", 20, "--dp", 2, "--executor", "broadcast", "--max-restarts", 100)
    for victim in ("worker-0-0", "engine-0"):
        streams = running(tree, 8, max_tokens=150)
        before = pids(tree)
        tree.kill(victim)
        until(lambda: tree.client.get("/health").json() == {"status": "degraded"}, 5)
        tree.sentinel()
        assert_undisturbed(streams)
        until_whole_again(tree)
        after = pids(tree)
        assert {name for name in before if before[name] != after[name]} == {"worker-0-0", "engine-0"}
    for number in range(4):
        tree.text(str(number), max_tokens=2)
    started = {labels: value for (name, labels), value in tree.metrics().items() if name == "engine_steps_total"}
    assert len(started) == 2
    assert all(started.values()), "both replicas work again"


def test_one_of_two_frontends_dies(start):
    """The other goes on with its streams and takes every new connection; the dead one comes back."""
    tree = start(*NULL, "--null-step-ms", 20, "--frontends", 2, "--max-restarts", 100)
    streams = running(tree, 16, max_tokens=150)
    before = pids(tree)
    tree.kill("frontend-1")
    for _ in range(10):
        with httpx.Client(base_url=tree.url) as client:
            assert client.get("/ready").status_code == 200
    ended = endings(streams)
    assert set(ended) == {"done", "cut"}
    until(lambda: pids(tree).get("frontend-1", before["frontend-1"]) != before["frontend-1"], 5)
    until_whole_again(tree)
    assert {name for name, pid in pids(tree).items() if pid != before[name]} == {"frontend-1"}
