"""What operators order of a running tree: restarts that break no stream, drains, ends; and what their commands say."""

import re
import threading

import httpx
import pytest
from exchange import PATHS, body_of
from streaming import Streaming, endings, running
from test_life_deaths import pids
from test_life_operator import command, ps, rows
from tree import PATIENCE, until

pytestmark = [pytest.mark.serving]

NULL = ("--model-impl", "null")
DONE, FAILED, REFUSED = 0, 1, 2


def order(tree, *arguments, home):
    """Runs a command for this tree; returns its status and its lines."""
    status, said = command(*arguments, tree.port, home=home)
    return status, said.splitlines()


class Asking:
    """Asks short questions without a pause until it is told to stop, over connections that are kept alive."""

    def __init__(self, tree, count=4):
        self.answers, self._stop = [], threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(tree,), daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self, tree):
        with httpx.Client(base_url=tree.url, timeout=20 * PATIENCE) as client:
            while not self._stop.is_set():
                try:
                    status = client.post(PATHS[0], json=body_of(tree, PATHS[0], max_tokens=2)).status_code
                except httpx.HTTPError as error:
                    status = repr(error)
                self.answers.append(status)

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(30 * PATIENCE)
        return self.answers


@pytest.mark.parametrize("frontends", [1, 2])
def test_a_frontend_restarts_and_nobody_notices(start, home, frontends):
    """Neither streams nor those who ask all the time, with another frontend or a spare one; and it never counts."""
    tree = start(*NULL, "--null-step-ms", 20, "--frontends", frontends, "--max-restarts", 0, env=home)
    assert tree.model == "null"
    streams, asking, before = running(tree, 4, max_tokens=100), Asking(tree), pids(tree)
    for _ in range(2):
        status, lines = order(tree, "restart", "frontend-0", home=home)
        assert (status, lines[-1]) == (DONE, "done"), lines
        assert ("frontend-1 stands in" in lines) == (frontends == 1)
    assert set(asking.stop()) == {200}
    assert len(asking.answers) > 20
    assert endings(streams) == ["done"] * 4
    after = pids(tree)
    assert {name for name in before if before[name] != after[name]} == {"frontend-0"}
    assert set(before) == set(after), "the spare one is gone"
    assert "lost" not in tree.log
    assert rows(ps(home))["frontend-0"][2] == "2", "which are shown, and not counted as deaths"
    assert tree.stop() == (0, {})


@pytest.mark.parametrize("name", ["replica-0", "balancer", "detokenizer-0", "all"])
def test_a_restart_breaks_no_stream(start, home, name):
    """All say what they would have said, as if nothing had happened; also when all there is restarts, twice."""
    tree = start(*NULL, "--null-step-ms", 20, "--max-restarts", 0, env=home)
    expected = [stream.text for stream in running(tree, 4, max_tokens=200) if stream.join() == "done"]
    streams = running(tree, 4, max_tokens=200)
    for _ in range(1 if name == "all" else 2):
        status, lines = order(tree, "restart", name, home=home)
        assert (status, lines[-1]) == (DONE, "done"), lines
    assert endings(streams) == ["done"] * 4
    assert [stream.text for stream in streams] == expected
    assert "lost" not in tree.log
    assert tree.stop() == (0, {})


def test_a_frontend_that_does_not_finish_in_time_is_cut_off_and_the_command_says_so(start, home):
    tree = start(*NULL, "--null-step-ms", 50, "--frontends", 2, env=home)
    streams = running(tree, 8)
    status, lines = order(tree, "restart", "frontend-0", "--drain", 1, home=home)
    assert status == FAILED, lines
    assert "frontend-0 has not finished within 1 s; what was left ends with an error" in lines
    assert "lost" not in tree.log
    tree.sentinel()
    tree.process.kill()
    assert set(endings(streams)) <= {"error", "cut"}


@pytest.mark.parametrize("name", ["worker-0-0", "engine-0", "replica-0"])
def test_a_replica_restarts_as_one_by_any_of_its_names(start, home, name):
    tree = start(*NULL, "--dp", 2, "--executor", "broadcast", "--max-restarts", 0, env=home)
    before = pids(tree)
    status, lines = order(tree, "restart", name, home=home)
    assert (status, lines[0], lines[-1]) == (DONE, "restarting worker-0-0, engine-0", "done")
    after = pids(tree)
    assert {one for one in before if before[one] != after[one]} == {"worker-0-0", "engine-0"}
    tree.sentinel()
    assert "lost" not in tree.log
    assert tree.stop() == (0, {})


def test_all_restart_one_after_another(start, home):
    """With max-restarts 0: what an operator orders is no death. The service answers before, between and after."""
    tree = start(*NULL, "--dp", 2, "--detokenizers", 2, "--max-restarts", 0, env=home)
    before = pids(tree)
    status, lines = order(tree, "restart", "all", home=home)
    assert (status, lines[-1]) == (DONE, "done"), lines
    begun = [line.removeprefix("restarting ") for line in lines if line.startswith("restarting")]
    assert begun == ["engine-0", "engine-1", "detokenizer-0", "detokenizer-1", "balancer", "frontend-0"]
    after = pids(tree)
    assert set(after) == set(before)
    assert not set(after.values()) & set(before.values())
    until(lambda: tree.client.get("/ready").status_code == 200, 5)
    tree.sentinel()
    assert tree.stop() == (0, {})


def test_a_wrong_name_is_refused_and_does_nothing(start, home):
    tree = start(*NULL, env=home)
    before = tree.processes()
    assert order(tree, "restart", "engin-0", home=home) == (
        REFUSED, ["engin-0 is no actor of this tree, and no replica; near are: engine-0"]
    )  # fmt: skip
    status, lines = command("restart", "engine-0", "4", home=home)
    assert status == FAILED
    assert re.match(r"actorlm: no running tree of this user serves port 4; running: /", lines)
    assert tree.processes() == before


def test_what_does_not_come_back_is_said(start, home, tiny_llama):
    """And what the supervisor does about it is the same as after a death."""
    tree = start(tiny_llama, *NULL, "--max-restarts", 1, env=home)
    (tiny_llama / "tokenizer.json").rename(tiny_llama / "away.json")
    status, lines = order(tree, "restart", "detokenizer-0", home=home)
    assert status == FAILED
    assert lines[-1].startswith("detokenizer-0 did not come back: "), lines
    assert "tokenizer.json" in lines[-1]
    assert tree.wait(15) == 1


@pytest.mark.parametrize("by", ["port", "directory"])
def test_a09_a_drain_finishes_what_was_accepted(start, home, by):
    tree = start(*NULL, "--null-step-ms", 20, env=home)
    directory = re.search(r"clients +ipc://(\S+)/frontend-0", ps(home))[1]
    streams = running(tree, 4, max_tokens=50)
    status, said = command("drain", tree.port if by == "port" else directory, home=home)
    assert (status, said.splitlines()) == (DONE, ["draining for up to 30 s", "drained and ended"])
    assert endings(streams) == ["done"] * 4
    assert tree.wait(5) == 0
    assert tree.processes() == {}


def test_a10_a_drain_that_was_not_enough_says_so(start, home):
    """The tree has done what its option says and ends with 0; the command wanted more."""
    tree = start(*NULL, "--null-step-ms", 50, env=home)
    streams = running(tree, 2)
    status, lines = order(tree, "drain", "--timeout", 1, home=home)
    assert (status, lines) == (FAILED, ["draining for up to 1 s", "ended; not all had finished in time"])
    assert endings(streams) == ["error"] * 2
    assert tree.wait(5) == 0


def test_stop_ends_at_once_also_in_the_middle_of_a_drain(start, home):
    tree = start(*NULL, "--null-step-ms", 50, env=home)
    streams, draining = running(tree, 2), []
    waiter = threading.Thread(target=lambda: draining.append(order(tree, "drain", home=home)))
    waiter.start()
    until(lambda: "draining" in tree.log, 10)
    status, lines = order(tree, "stop", home=home)
    assert (status, lines) == (DONE, ["the tree is ending already; what it has left ends with an error", "ended"])
    assert endings(streams) == ["error"] * 2
    assert tree.wait(8) == 0
    waiter.join(20)
    assert draining == [(FAILED, ["draining for up to 30 s", "ended; not all had finished in time"])]
    assert tree.processes() == {}


def test_stop_ends_the_tree(start, home):
    tree = start(*NULL, "--null-step-ms", 50, env=home)
    streams = running(tree, 2)
    assert order(tree, "stop", home=home) == (DONE, ["stopping", "ended"])
    assert endings(streams) == ["error"] * 2
    assert tree.wait(1) == 0
    assert tree.processes() == {}


def test_one_restart_at_a_time_and_an_end_ends_it(start, home):
    tree = start(*NULL, "--null-step-ms", 50, "--frontends", 2, env=home)
    streams, first = running(tree, 4), []
    waiter = threading.Thread(target=lambda: first.append(order(tree, "restart", "all", home=home)))
    waiter.start()
    until(lambda: "an operator restarts all" in tree.log, 10)
    assert order(tree, "restart", "balancer", home=home) == (
        FAILED, ["another restart is under way; wait for its end"]
    )  # fmt: skip
    assert order(tree, "stop", home=home)[0] == DONE
    waiter.join(20)
    status, lines = first[0]
    assert (status, lines[-1]) == (FAILED, "the tree is ending; what was not restarted yet is left")
    assert tree.wait(5) == 0
    endings(streams)


def test_top_needs_a_terminal(start, home):
    status, said = command("top", home=home)
    assert status == REFUSED
    assert said == "actorlm: `actorlm top` needs a terminal; `actorlm ps` prints the same once\n"


def test_a_supervisor_that_dies_under_an_order_is_reported(start, home):
    tree = start(*NULL, "--null-step-ms", 50, "--frontends", 2, env=home)
    streams, said = running(tree, 2), []
    waiter = threading.Thread(target=lambda: said.append(order(tree, "drain", home=home)))
    waiter.start()
    until(lambda: "draining" in tree.log, 10)
    tree.process.kill()
    waiter.join(30)
    status, lines = said[0]
    assert status == FAILED
    assert lines[-1].endswith("the supervisor is gone, or out of reach, without a last answer")
    endings(streams)


def test_a_streams_new_request_waits_for_no_restart(start, home):
    """The spare frontend takes a connection that comes while the only one finishes what it has."""
    tree = start(*NULL, "--null-step-ms", 50, env=home)
    long = Streaming(tree, max_tokens=100)
    until(lambda: long.texts, 10)
    waiter = threading.Thread(target=lambda: order(tree, "restart", "frontend-0", home=home))
    waiter.start()
    until(lambda: "an operator restarts" in tree.log, 10)
    until(lambda: len([one for one in pids(tree) if one.startswith("frontend")]) == 2, 10)
    until(lambda: rows(ps(home)).get("frontend-1", ["", ""])[1] == "ready", 20)
    with httpx.Client(base_url=tree.url) as client:
        answer = client.post(PATHS[0], json={"model": "null", "prompt": "x", "max_tokens": 2}, timeout=10 * PATIENCE)
    assert answer.status_code == 200
    assert long.join() == "done"
    waiter.join(60)
    tree.sentinel()
