"""What is left of a tree: no process, no port, no file, whatever ended it and whenever."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from streaming import Streaming, endings, running
from tree import ACTORLM, Tree, until

pytestmark = [pytest.mark.serving]

NULL = ("--model-impl", "null")
MANY = (*NULL, "--executor", "broadcast", "--dp", 2)


def files(home):
    """All that is there but the four directories themselves."""
    return sorted(str(path) for top in home.values() for path in Path(top).rglob("*"))


def shared_memory():
    """Names in /dev/shm that a tree could have made, and not another program that runs at the same time."""
    return sorted(path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(("actorlm", "sem.", "zmq")))


def idle(tree):
    tree.sentinel()


def mid_stream(tree):
    running(tree, 4)


def mid_step(tree):
    """The worker computes and hears nothing: this step takes a minute."""
    Streaming(tree)
    until(lambda: tree.total("num_requests_running") == 1, 5)


@pytest.mark.parametrize(
    ("moment", "step_ms"), [(idle, 0), (mid_stream, 20), (mid_step, 60_000)], ids=["idle", "mid stream", "mid step"]
)
def test_a04_no_orphan_survives_the_supervisor(start, moment, step_ms):
    """Killed at once and for good: everybody goes, and the next start finds its port free."""
    tree = start(*MANY, "--null-step-ms", step_ms)
    moment(tree)
    assert len(tree.processes()) == 8
    tree.process.kill()
    until(lambda: tree.processes() == {}, 10)
    again = start(*NULL, port=tree.port)
    again.sentinel()
    assert again.stop() == (0, {})


@pytest.mark.parametrize("title", ["actorlm.process", "actorlm engine-0", "actorlm frontend-0"])
def test_a04_no_orphan_survives_a_supervisor_that_is_killed_while_it_starts(start, title):
    tree = start(*MANY, ready=False)
    until(lambda: any(title in one for one in tree.processes().values()), 10, every=0.001)
    tree.process.kill()
    until(lambda: tree.processes() == {}, 10)


@pytest.mark.parametrize("delay_s", [0, 0.3, 1])
def test_a04_no_orphan_survives_a_supervisor_that_is_killed_while_workers_import(start, tiny_llama, delay_s):
    """A real model, whose workers import for seconds, in which they hear nothing."""
    tree = start(tiny_llama, "--executor", "broadcast", "--dp", 2, ready=False)
    until(lambda: "worker-0-0  start" in tree.log, 30, every=0.001)
    time.sleep(delay_s)
    tree.process.kill()
    until(lambda: tree.processes() == {}, 10)


def restarting(tree):
    """A replica has died, and its successors import."""
    tree.kill("engine-0")
    until(lambda: any("actorlm.process worker-0-0" in title for title in tree.processes().values()), 10, every=0.001)


def ordered(tree):
    """An operator restarts the only frontend: a spare one imports."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = subprocess.Popen([ACTORLM, "restart", "frontend-0", str(tree.port)], **quiet)
    until(lambda: any("actorlm.process frontend-1" in title for title in tree.processes().values()), 20, every=0.001)
    return command


def draining(tree):
    running(tree, 2)
    tree.process.send_signal(signal.SIGTERM)
    until(lambda: "draining" in tree.log, 5)


@pytest.mark.parametrize("moment", [restarting, ordered, draining], ids=lambda moment: moment.__name__)
def test_a04_no_orphan_survives_a_supervisor_that_is_killed_at_work(start, moment):
    tree = start(*MANY, "--null-step-ms", 20)
    command = moment(tree)
    tree.process.kill()
    until(lambda: tree.processes() == {}, 10)
    if command is not None:
        assert command.wait(30) == 1, "who ordered is told"


def test_a04_a_process_that_stands_still_does_not_survive_either(start):
    tree = start(*MANY)
    for name in ("engine-0", "worker-1-0", "frontend-0", "balancer"):
        tree.kill(name, signal.SIGSTOP)
    tree.process.kill()
    until(lambda: tree.processes() == {}, 10)


def kill_all(tree):
    tree.signal_all(signal.SIGKILL)
    until(lambda: tree.processes() == {}, 10)


@pytest.mark.parametrize(
    "rounds",
    [pytest.param(3, id="short"), pytest.param(30, id="long", marks=[pytest.mark.long, pytest.mark.timeout(900)])],
)
def test_a19_a_hard_kill_leaves_nothing_that_grows(start, home, rounds):
    """Each start sweeps what the one before could not; a clean stop leaves nothing at all."""
    before, counts = shared_memory(), []
    for _ in range(rounds):
        tree = start(*MANY, env=home)
        for number in range(5):
            tree.text(str(number), max_tokens=3)
        kill_all(tree)
        counts.append(len(files(home)))
    assert max(counts[1:]) <= counts[0]
    tree = start(*MANY, env=home)
    assert tree.stop() == (0, {})
    assert files(home) == []
    assert shared_memory() == before


ALONE = ("unshare", "--mount", "--map-root-user", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"')


@pytest.mark.skipif(
    subprocess.run([*ALONE, "sh", "true"], capture_output=True, check=False).returncode != 0,
    reason="there are no mount namespaces",
)
def test_a19_workers_leave_nothing_in_shared_memory(start, home, tiny_llama):
    """Neither where they are killed nor where they stop. There is little of it, and nobody else's."""
    for end in (kill_all, Tree.stop):
        tree = start(tiny_llama, "--tp", 2, env=home, command=(*ALONE, "sh", ACTORLM, "up"))
        shared = os.open(f"/proc/{tree.process.pid}/root/dev/shm", os.O_RDONLY)
        tree.text("x", max_tokens=3)
        end(tree)
        assert tree.processes() == {}
        assert os.listdir(shared) == []  # noqa: PTH208 - a descriptor
        os.close(shared)
    assert files(home) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a19_a_stop_leaves_nothing(start, home, number):
    """Neither with streams running nor in the middle of a start."""
    tree = start(*MANY, "--null-step-ms", 20, "--drain-timeout-s", 1, env=home)
    streams = running(tree, 2)
    tree.stop(number)
    assert set(endings(streams)) == {"error"}
    assert files(home) == []
    tree = start(*MANY, env=home, ready=False)
    until(lambda: files(home), 10, every=0.001)
    tree.stop(number)
    assert tree.processes() == {}
    assert files(home) == []


def test_a19_a_start_that_fails_leaves_nothing(start, home):
    tree = start(*MANY, "--start-timeout-s", 0.1, env=home, ready=False)
    assert tree.wait() == 1
    assert files(home) == []


def test_a19_a_start_sweeps_the_dead_and_leaves_the_living(start, home):
    """Of two trees of one user, one was killed; a third start removes its files and no others."""
    living, dead = start(*NULL, env=home), start(*NULL, env=home)
    kill_all(dead)
    swept = [path for path in files(home) if path.startswith(home["XDG_RUNTIME_DIR"])]
    third = start(*NULL, env=home)
    left = files(home)
    assert len([path for path in swept if path not in left]) >= 5
    assert endings([Streaming(living, max_tokens=50)]) == ["done"]
    assert third.stop() == (0, {})
    living.sentinel()
    assert living.stop() == (0, {})
    assert files(home) == []


def test_a19_what_a_stranger_left_in_our_directory_is_no_trouble(start, home):
    """A file, an empty directory and a link where run directories are."""
    base = Path(home["XDG_RUNTIME_DIR"]) / f"actorlm-{os.getuid()}"
    base.mkdir(mode=0o700)
    (base / "file").write_text("x")
    (base / "link").symlink_to(home["HOME"])
    (base / "empty").mkdir()
    (Path(home["HOME"]) / "precious").write_text("x")
    tree = start(*NULL, env=home)
    tree.sentinel()
    assert tree.stop() == (0, {})
    assert (Path(home["HOME"]) / "precious").read_text() == "x"


def test_a19_nothing_is_written_below_the_working_directory(start, home, tmp_path):
    tree = start(*NULL, env=home, cwd=tmp_path)
    tree.sentinel()
    tree.stop()
    assert list(tmp_path.iterdir()) == []
