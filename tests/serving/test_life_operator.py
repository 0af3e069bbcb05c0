"""What an operator sees of a tree: the plan before, the table of processes, their titles, and what they have loaded."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from streaming import Streaming, running
from tree import ACTORLM, PATIENCE, until

pytestmark = [pytest.mark.serving]

NULL = ("--model-impl", "null")
MANY = (*NULL, "--dp", 2, "--frontends", 2, "--detokenizers", 2, "--executor", "broadcast")
ACTORS = {
    "frontend-0": "frontend", "frontend-1": "frontend",
    "detokenizer-0": "detokenizer", "detokenizer-1": "detokenizer",
    "balancer": "balancer",
    "engine-0": "engine", "engine-1": "engine",
    "worker-0-0": "worker", "worker-1-0": "worker",
}  # fmt: skip


def command(*arguments, home):
    """Runs a command in a wide terminal; returns its status and what it said. Nothing of it is a traceback."""
    done = subprocess.run(
        [ACTORLM, *map(str, arguments)], env=os.environ | {"COLUMNS": "220"} | home, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=20 * PATIENCE, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def rows(table):
    """The cells of all lines that begin with the name of an actor, by that name."""
    cells = (line.split() for line in table.splitlines() if " has died, " not in line)
    return {line[0]: line[1:] for line in cells if line and re.fullmatch(r"[a-z]+(-\d+)*", line[0]) and len(line) > 1}


def ps(home):
    """What `actorlm ps` says of one tree; the user may have others, which are not asked."""
    base = Path(home["XDG_RUNTIME_DIR"], f"actorlm-{os.getuid()}")
    _, said = command("ps", *(entry.path for entry in os.scandir(base)), home=home)
    return next(
        (part for part in re.split(r"^(?=http://|/)", said, flags=re.MULTILINE) if home["XDG_RUNTIME_DIR"] in part), ""
    )


def test_plan_shows_what_up_starts_and_starts_nothing(start, home):
    status, table = command("plan", *MANY, "--host", "::1", home=home)
    assert status == 0, table
    planned = {name: cells[0] for name, cells in rows(table[: table.index("binds")]).items() if name != "process"}
    assert ACTORS.items() <= planned.items()
    assert "supervisor" in planned
    for fact in ("262,144 tokens", "executor broadcast", " [::1]:8000", "ipc://", "null"):
        assert fact in table
    assert not any(os.scandir(home["XDG_RUNTIME_DIR"]))
    tree = start(*MANY, env=home)
    assert set(tree.processes().values()) == {f"actorlm {name}" for name in ("supervisor", *ACTORS)}


def test_plan_shows_the_ranks_of_each_worker_in_every_group(home):
    status, table = command("plan", *NULL, "--dp", 2, "--pp", 2, "--tp", 2, home=home | {"COLUMNS": "80"})
    assert status == 0, table
    workers = {name: cells for name, cells in rows(table[: table.index("binds")]).items() if cells[0] == "worker"}
    assert workers == {
        f"worker-{dp}-{2 * pp + tp}": ["worker", *map(str, (dp, pp, tp, 2 * pp + tp)), "none"]
        for dp in (0, 1) for pp in (0, 1) for tp in (0, 1)
    }  # fmt: skip


def test_plan_of_a_real_model_estimates_its_memory(tiny_llama, home):
    status, table = command("plan", tiny_llama, "--kv-cache-tokens", 4096, home=home)
    assert status == 0, table
    assert "4,096 tokens" in table
    assert re.search(r"engine-0 +engine +0 +0 +0 +0 +cpu", table)
    assert re.search(r"memory +\d+ MiB", table)


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("--tp", 0), 2, "--tp"),
        (("/no/such/model",), 1, "/no/such/model"),
        ((), 1, "actorlm pull smollm2-135m"),
        (("--bogus",), 2, "--bogus"),
    ],
)
def test_plan_says_what_is_wrong_as_up_does(home, arguments, status, reason):
    found, said = command("plan", *arguments, home=home)
    assert found == status
    assert said.strip().splitlines()[-1].startswith("actorlm: ")
    assert reason in said


def test_ps_shows_the_running_tree(start, home):
    tree = start(*NULL, "--null-step-ms", 20, "--executor", "broadcast", env=home)
    table = ps(home)
    assert re.match(rf"{tree.url} +null +ready +{home['XDG_RUNTIME_DIR']}", table)
    shown = rows(table)
    for pid, title in tree.processes().items():
        name = title.removeprefix("actorlm ")
        if name != "supervisor":
            assert shown[name][0:3] == [str(pid), "ready", "0"]
            assert int(shown[name][4]) > 10, "MiB"
    assert re.search(r"worker-0-0 .* dp0 pp0 tp0 *$", table, re.MULTILINE), "ranks, and no host where all have one"
    tree.kill("worker-0-0")
    until(lambda: rows(ps(home))["engine-0"][1:3] == ["ready", "1"], 10)
    died = ps(home)
    assert re.search(r"^worker-0-0 has died, last: killed by SIGKILL *$", died, re.MULTILINE)
    assert re.search(
        r"^engine-0 has died, last: killed by SIGKILL \(it restarts with worker-0-0\) *$", died, re.MULTILINE
    )
    assert rows(ps(home))["balancer"][2] == "0"
    _streams = running(tree, 2)
    until(lambda: (rows(ps(home))["engine-0"][6], rows(ps(home))["frontend-0"][6]) == ("2+0", "2"), 10)
    tree.process.send_signal(signal.SIGTERM)
    until(lambda: " draining " in ps(home), 3)


def test_ps_of_a_tree_that_starts_or_does_not_answer(start, home):
    tree = start(*NULL, env=home, ready=False)
    until(lambda: f"{tree.url}  null  starting" in command("ps", home=home)[1], 10)
    tree.wait_ready()
    tree.process.send_signal(signal.SIGSTOP)
    table = ps(home)
    status, _ = command("ps", next(os.scandir(Path(home["XDG_RUNTIME_DIR"], f"actorlm-{os.getuid()}"))).path, home=home)
    assert status == 1, "the only one that was asked for does not answer"
    tree.process.send_signal(signal.SIGCONT)
    assert re.search(rf"{home['XDG_RUNTIME_DIR']}\S+: no answer within", table)
    tree.sentinel()


def test_ps_does_not_disturb(start, home):
    """Neither streams nor the tree's end, whoever asks how often."""
    tree = start(*NULL, "--null-step-ms", 5, env=home)
    stream = Streaming(tree, max_tokens=300)
    for _ in range(3):
        assert "ready" in ps(home)
    assert stream.join() == "done"
    assert tree.stop() == (0, {})


def test_ps_shows_no_tree_that_is_dead(start, home):
    tree = start(*NULL, env=home)
    tree.signal_all(signal.SIGKILL)
    until(lambda: tree.processes() == {}, 10)
    assert home["XDG_RUNTIME_DIR"] not in command("ps", home=home)[1]


@pytest.mark.parametrize(
    ("model", "executor", "with_torch"),
    [("null", "broadcast", set()), ("real", "inline", {"engine-0"}), ("real", "broadcast", {"worker-0-0"})],
)
def test_only_who_computes_loads_torch(start, tiny_llama, model, executor, with_torch):
    """Never the frontend, the balancer, the detokenizer, the supervisor; with the null model nobody."""
    tree = start(*(NULL if model == "null" else (tiny_llama,)), "--executor", executor)
    tree.text([72, 105], max_tokens=2)
    found = {title.removeprefix("actorlm ") for pid, title in tree.processes().items() if tree.maps(pid, "libtorch")}
    assert found == with_torch
