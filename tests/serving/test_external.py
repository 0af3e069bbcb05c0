"""Trees whose workers a launcher has started: they serve, drain, and end with the first rank that dies."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import null_model
import pytest
from streaming import endings, running
from tree import ACTORLM, in_parallel, until

pytestmark = [pytest.mark.serving, pytest.mark.timeout(300)]

UP = ("-m", "actorlm", "up")
NULL = ("--model-impl", "null", "--executor", "external", "--tp", 2, "--dp", 2)
LAUNCHER = str(Path(__file__).with_name("launcher.py"))
PARTS = ["supervisor", "balancer", "frontend-0", "detokenizer-0", "engine-0", "engine-1",
         "worker-0-0", "worker-0-1", "worker-1-0", "worker-1-1"]  # fmt: skip


def by_hand(count):
    return (sys.executable, LAUNCHER, str(count), sys.executable, *UP)


def by_torchrun(count, *options):
    return (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(count),
        *options,
        *UP,
    )


def launched(tree):
    """The pids that the launcher itself has started."""
    children = Path(f"/proc/{tree.process.pid}/task/{tree.process.pid}/children").read_text()
    return set(map(int, children.split()))


def assert_serves(tree):
    prompts = [f"prompt {number}" for number in range(8)]
    answers = in_parallel([lambda prompt=prompt: tree.text(prompt, max_tokens=8, temperature=0) for prompt in prompts])
    assert answers == [null_model.answer(list(prompt.encode()), 8) for prompt in prompts]


def assert_ends(tree, seconds):
    """No process of the job is left after so many seconds, although its launcher ends none."""
    until(lambda: not tree.processes().keys() - {tree.process.pid}, seconds)


def test_each_rank_is_one_of_the_launchers_processes(start):
    """Rank 0 is the supervisor, whose child is the worker of that rank. A drain ends all of them with status 0."""
    tree = start(*NULL, command=by_hand(4))
    assert sorted(title.split()[1] for title in tree.processes().values() if title.startswith("actorlm ")) == sorted(
        PARTS
    )
    assert launched(tree) == {tree.pid(name) for name in ("supervisor", "worker-0-1", "worker-1-0", "worker-1-1")}
    assert_serves(tree)
    assert tree.stop() == (0, {})
    assert "statuses [0, 0, 0, 0]" in tree.log


@pytest.mark.parametrize("victim", ["worker-0-0", "worker-1-0", "worker-1-1", "engine-1"])
def test_a_dead_rank_ends_the_job_with_its_cause(start, victim):
    tree = start(*NULL, command=by_hand(4))
    pid = tree.kill(victim)
    assert_ends(tree, 2)
    assert tree.wait() == 1
    lost = re.findall("^lost .*", tree.log, re.MULTILINE)
    last = [line for line in tree.log.splitlines() if not line.startswith("statuses")][-1]
    assert len(lost) == 1, tree.log
    assert last == lost[0].replace("lost ", "actorlm: ")
    assert f"{victim} (pid {pid})" in last


def test_a12_a_rank_dies_before_the_tree_is_ready(start):
    tree = start(*NULL, ready=False, command=by_hand(4))
    until(lambda: "actorlm worker-1-0" in tree.processes().values(), 15, every=0.001)
    pid = tree.kill("worker-1-0")
    assert_ends(tree, 2)
    assert f"actorlm: worker-1-0 (pid {pid}): rank 2 has ended without a word" in tree.log.splitlines()
    assert "Traceback" not in tree.log


def test_a02_a_rank_that_stands_still_ends_the_job(start):
    tree = start(*NULL, "--heartbeat-timeout-s", 4, command=by_hand(4))
    pid = tree.kill("worker-1-1", signal.SIGSTOP)
    assert_ends(tree, 8)
    cause = rf"worker-1-1 \(pid {pid}\): rank 3 has ended without a word \(silent for 4 s .*\)"
    assert re.search(f"^actorlm: {cause}$", tree.log, re.MULTILINE), tree.log


FAILING = """
def setproctitle(title):
    if title == "actorlm worker-1-1":
        from actorlm.execution.null import NullRunner
        def execute(self, step):
            raise ValueError("five")
        NullRunner.execute = execute
"""


def test_an_exception_of_a_rank_ends_the_job_with_it(start, tmp_path):
    (tmp_path / "setproctitle.py").write_text(FAILING)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    tree = start(*NULL, env={"PYTHONPATH": path}, command=by_hand(4))
    in_parallel([lambda: tree.post("/v1/completions", {"model": "null", "prompt": "x", "max_tokens": 4})] * 4)
    assert_ends(tree, 4)
    said = r"actorlm: \S+ \(pid \d+\): .*rank 1 on \S+ \(pid \d+\), step \d+: ValueError: five"
    assert re.search(f"^{said}", tree.log, re.MULTILINE), tree.log
    assert len(re.findall("^lost ", tree.log, re.MULTILINE)) == 1
    assert tree.log.count("Traceback") == 1


def test_what_can_restart_alone_does(start):
    tree = start(*NULL, command=by_hand(4))
    before = tree.kill("balancer")
    until(lambda: "actorlm balancer" in {**tree.processes(), before: "dead"}.values(), 10)
    until(lambda: tree.client.get("/ready").status_code == 200, 10)
    assert_serves(tree)


def test_no_rank_outlives_the_leader(start):
    tree = start(*NULL, command=by_hand(4))
    tree.kill("supervisor")
    assert_ends(tree, 2)
    assert tree.wait() != 0


def test_a_leader_that_cannot_begin_ends_the_others(start):
    """The launcher does not: rank 0 finds no such model, perhaps before they look for it."""
    options = ("--executor", "external", "--dp", 2, "--start-timeout-s", 5)
    tree = start("no-such-model", *options, ready=False, command=by_hand(2))
    assert tree.wait() != 0
    assert "no-such-model" in tree.log
    assert re.search("rank 0 has ended before it had work for rank 1|rank 1 has not found rank 0", tree.log)
    assert re.search(r"statuses \[[12], 1\]", tree.log)


def test_torchrun_starts_a_job_again_that_a_dead_rank_has_ended(start):
    tree = start(*NULL, command=by_torchrun(4, "--max-restarts", "1"))
    assert_serves(tree)
    first = tree.kill("worker-1-1")
    until(lambda: tree.log.count("ready after") == 2, 40)
    assert f"actorlm: worker-1-1 (pid {first}): rank 3 has ended without a word" in tree.log
    assert_serves(tree)
    tree.kill("worker-0-1")
    assert tree.wait() != 0
    assert tree.processes() == {}


def test_sigterm_to_torchrun_drains(start):
    tree = start(*NULL, "--null-step-ms", 20, port=0, command=by_torchrun(4))
    streams = running(tree, 4, max_tokens=60)
    tree.process.send_signal(signal.SIGTERM)
    assert endings(streams, 20) == ["done"] * 4
    tree.wait()
    assert "draining" in tree.log
    assert not re.search("^(lost|actorlm:)", tree.log, re.MULTILINE), tree.log
    assert tree.processes() == {}


def test_d03_golden_prompts_at_tp_3_and_a_rank_that_dies_in_decode(start, golden, golden_texts):
    arguments = ("--dtype", "float32", "--executor", "external", "--tp", 3)
    tree = start(*arguments, ready=False, port=0, command=by_torchrun(3)).wait_ready(60)
    jobs = [lambda item=item: tree.text(item["prompt_ids"], temperature=0, max_tokens=64) for item in golden]
    assert in_parallel(jobs) == golden_texts
    running(tree, 4)
    pid = tree.kill("worker-0-2")
    assert_ends(tree, 2)
    assert tree.wait() != 0
    assert re.findall("^actorlm: .*", tree.log, re.MULTILINE) == [
        f"actorlm: worker-0-2 (pid {pid}): rank 2 has ended without a word"
    ]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"WORLD_SIZE": "3"}, "WORLD_SIZE is 3, but --dp 1 --tp 2 --pp 1 make 2 workers; launch as many processes"),
        ({"RANK": "2"}, "RANK is 2; it must be less than WORLD_SIZE, 2"),
        ({"MASTER_ADDR": "192.0.2.1"}, "MASTER_ADDR is 192.0.2.1, which is no address of this machine"),
        ({"RANK": ""}, "RANK is not set; start the ranks with torchrun, or a launcher that sets RANK, WORLD_SIZE"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT is 'x'; it must be a number"),
    ],
)
def test_a45_a_job_of_another_shape_is_refused(changed, reason):
    job = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    command = [ACTORLM, "up", "--model-impl", "null", "--executor", "external", "--tp", "2"]
    environment = os.environ | job | changed
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("actorlm: --executor external: ")
    assert reason in ended.stderr


def test_plan_shows_the_launched_ranks():
    command = [ACTORLM, "plan", "--model-impl", "null", "--executor", "external", "--tp", "2", "--dp", "2"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "4 processes; rank 0: all but these; rank 1: worker-0-1, rank 2: worker-1-0, rank 3: worker-1-1" in " ".join(
        shown.split()
    )
