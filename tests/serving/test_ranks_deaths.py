"""Replicas of several workers: whichever dies, however and whenever, the cause is said once, and nobody waits on."""

import os
import re
import signal
import time

import pytest
from shapes import SHAPES
from streaming import Streaming, assert_undisturbed, endings, running
from test_life_deaths import pids, until_whole_again
from tree import PATIENCE, until

pytestmark = [pytest.mark.serving]

NULL = ("--model-impl", "null")
WORKERS = {
    "tp2": ("worker-0-0", "worker-0-1"),
    "pp2": ("worker-0-0", "worker-0-1"),
    "tp2 pp2": ("worker-0-0", "worker-0-1", "worker-0-2", "worker-0-3"),
    "dp2 tp2": ("worker-0-0", "worker-0-1", "worker-1-0", "worker-1-1"),
}
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGQUIT, signal.SIGBUS, signal.SIGUSR1)
PHASES = ("prefill", "decode", "idle")
SHORT = {
    ("tp2", "worker-0-1", signal.SIGKILL, "decode"),
    ("tp2", "worker-0-0", signal.SIGSEGV, "prefill"),
    ("pp2", "worker-0-0", signal.SIGSEGV, "prefill"),
    ("tp2 pp2", "worker-0-3", signal.SIGABRT, "idle"),
    ("dp2 tp2", "worker-1-1", signal.SIGKILL, "decode"),
}


def combinations():
    for shape, workers in WORKERS.items():
        for case in ((shape, victim, number, phase) for victim in workers for number in SIGNALS for phase in PHASES):
            name = f"{shape} {case[1]} {case[2].name} {case[3]}"
            yield pytest.param(*case, id=name, marks=() if case in SHORT else (pytest.mark.long,))


def begin(tree, phase):
    """Streams in that phase. A prompt of 2,000 tokens takes 60 steps here."""
    if phase == "idle":
        return []
    if phase == "decode":
        return running(tree, 4, max_tokens=150)
    streams = [Streaming(tree, prompt=f"{number} " * 1000, max_tokens=20) for number in range(2)]
    until(lambda: tree.total("num_requests_running") == 2, 5)
    return streams


def replica_of(worker):
    """All names of its processes begin so, but for its engine's."""
    return worker.rsplit("-", 1)[0] + "-", f"engine-{worker.split('-')[1]}"


@pytest.mark.parametrize(("shape", "victim", "number", "phase"), list(combinations()))
def test_a_worker_dies(tree_of, shape, victim, number, phase):
    """Its end is reported once within two seconds, all of its replica goes with it, and comes back; streams go on."""
    tree = tree_of(
        *NULL, *SHAPES[shape], "--null-step-ms", 20, "--max-num-batched-tokens", 64, "--max-restarts", 10_000
    )
    streams, before, said = begin(tree, phase), pids(tree), len(tree.log)
    pid, killed_at = tree.kill(victim, number), time.monotonic()
    workers, engine = replica_of(victim)
    replica = {name: old for name, old in before.items() if name.startswith(workers) or name == engine}
    until(lambda: f"lost {victim} (pid {pid}): killed by {number.name}\n" in tree.log[said:], 2)
    until(lambda: not set(replica.values()) & set(tree.processes()), 2)
    assert time.monotonic() - killed_at < 2 * PATIENCE
    until(lambda: set(replica) <= set(pids(tree)), 5)
    assert_undisturbed(streams)
    until_whole_again(tree)
    assert {name for name, old in before.items() if pids(tree)[name] != old} == set(replica)
    assert re.findall("^lost .*", tree.log[said:], re.MULTILINE) == [
        f"lost {victim} (pid {pid}): killed by {number.name}"
    ]
    assert "Traceback" not in tree.log[said:]


@pytest.mark.parametrize(
    ("shape", "number"),
    [
        pytest.param(shape, number, marks=() if short else (pytest.mark.long,), id=f"{shape} {number.name}")
        for shape in SHAPES
        for number in SIGNALS
        for short in [(shape, number) in {("tp2", signal.SIGSEGV), ("tp2 pp2", signal.SIGKILL)}]
    ],
)
def test_a12_a_worker_dies_before_the_tree_is_ready(start, shape, number):
    """The others are gone within seconds, and the cause is the only one that is said."""
    tree = start(*NULL, *SHAPES[shape], ready=False)
    victim = WORKERS[shape][-1]
    until(lambda: f"actorlm {victim}" in tree.processes().values(), 15, every=0.001)
    cause = f"{victim} (pid {tree.kill(victim, number)}): killed by {number.name}"
    assert tree.wait(10) == 1
    assert tree.processes() == {}
    assert tree.log.splitlines()[-1] == f"actorlm: {cause}"
    assert re.findall("^lost .*", tree.log, re.MULTILINE) == [f"lost {cause}"]


def test_a02_a_worker_among_several_stands_still(start):
    """It is named with what it was last doing, long before a step would time out."""
    tree = start(*NULL, "--tp", 2, "--null-step-ms", 20, "--heartbeat-timeout-s", 4, "--max-restarts", 10)
    streams, before = running(tree, 2, max_tokens=300), pids(tree)
    time.sleep(2.5)  # in which it says what it does
    pid = tree.kill("worker-0-1", signal.SIGSTOP)
    assert_undisturbed(streams)
    until_whole_again(tree)
    [lost] = re.findall("^lost .*", tree.log, re.MULTILINE)
    why = r"silent for 4 s \(--heartbeat-timeout-s\); last heard of: (step \d+|idle)"
    assert re.fullmatch(rf"lost worker-0-1 \(pid {pid}\): killed by SIGKILL \({why}\)", lost)
    assert not set(before.values()) & {pids(tree)[name] for name in ("engine-0", "worker-0-0", "worker-0-1")}


@pytest.mark.parametrize("shape", [(), ("--tp", 2)], ids=["inline", "tp2"])
def test_a_step_without_end_is_warned_of_and_ends_its_replica(start, shape):
    """Its processes answer heartbeats all the time."""
    timing = ("--null-step-ms", 60_000, "--heartbeat-timeout-s", 2, "--step-timeout-s", 4)
    tree = start(*NULL, *shape, *timing, "--max-restarts", 0)
    rank_pid = pids(tree)["worker-0-0" if shape else "engine-0"]
    stream = Streaming(tree)
    assert tree.wait(12) == 1
    assert stream.join() == "error"
    assert tree.processes() == {}
    who = rf"rank 0 on \S+ \(pid {rank_pid}\), last answer \d+ s ago, then: step \d+"
    assert re.search(rf"warning.* a step takes long .*{who}", tree.log), tree.log
    last = tree.log.splitlines()[-1]
    assert re.match(rf"actorlm: engine-0 \(pid \d+\): a step has not ended in time \(--step-timeout-s\): {who}", last)
    assert ("; rank 1 on " in last) == bool(shape)


FAILING = """
def setproctitle(title):
    if title == "actorlm worker-0-1":
        from actorlm.execution.null import NullRunner
        def execute(self, step):
            raise ValueError("five")
        NullRunner.execute = execute
"""


def test_an_exception_of_a_rank_that_does_not_answer_steps(start, tmp_path):
    """It names rank, host, pid, type, message and where it was raised, once."""
    (tmp_path / "setproctitle.py").write_text(FAILING)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    tree = start(*NULL, "--tp", 2, "--max-restarts", 0, env={"PYTHONPATH": path})
    pid = next(pid for pid, title in tree.processes().items() if "actorlm.process worker-0-1" in title)
    Streaming(tree)
    assert tree.wait(8) == 1
    assert tree.processes() == {}
    assert re.search(rf"rank 1 on \S+ \(pid {pid}\), step \d+: ValueError: five", tree.log.splitlines()[-1])
    assert len(re.findall("^lost ", tree.log, re.MULTILINE)) == 1
    assert tree.log.count("Traceback") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_signals_that_are_the_supervisors_leave_workers_alone(tree_of, number):
    tree = tree_of(
        *NULL, *SHAPES["tp2"], "--null-step-ms", 20, "--max-num-batched-tokens", 64, "--max-restarts", 10_000
    )
    streams, before = running(tree, 2, max_tokens=50), pids(tree)
    tree.kill("worker-0-1", number)
    assert endings(streams) == ["done"] * 2
    assert pids(tree) == before


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_same_text(tree_of, shape):
    tree = tree_of(
        *NULL, *SHAPES[shape], "--null-step-ms", 20, "--max-num-batched-tokens", 64, "--max-restarts", 10_000
    )
    one = tree_of(*NULL)
    for fields in ({"temperature": 0}, {"seed": 7, "temperature": 1.0}):
        wanted = one.text("Same for all", max_tokens=20, ignore_eos=True, **fields)
        assert tree.text("Same for all", max_tokens=20, ignore_eos=True, **fields) == wanted


@pytest.mark.parametrize("victim", ["worker-0-1", "engine-0", "balancer", "detokenizer-0"])
def test_what_dies_while_the_tree_drains_is_repaired(start, victim):
    """Streams that were accepted end as they would have, and the drain is a success."""
    tree = start(*NULL, "--tp", 2, "--null-step-ms", 20)
    calm = [tree.text(f"{number}", max_tokens=150, ignore_eos=True, temperature=0) for number in range(2)]
    streams = running(tree, 2, max_tokens=150)
    tree.process.send_signal(signal.SIGTERM)
    until(lambda: "draining" in tree.log, 5)
    tree.kill(victim)
    assert endings(streams) == ["done"] * 2
    assert [stream.text for stream in streams] == calm
    assert tree.wait(8) == 0
    assert tree.processes() == {}
