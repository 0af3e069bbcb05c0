"""Several trees on one machine: they start at the same time, and have nothing to do with each other."""

import os
import random
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest
from beside import Beside
from streaming import Streaming, endings
from tree import ACTORLM, Tree, free_port, in_parallel, until

pytestmark = [pytest.mark.serving]

NULL = ("--model-impl", "null")


class PortGrabber(Beside):
    """Takes ports that the system hands out, holds each for a moment, and takes the next."""

    def __init__(self):
        super().__init__(0.002)
        self._held = []

    def __exit__(self, *_):
        super().__exit__()
        for sock in self._held:
            sock.close()

    def step(self):
        self._held.append(socket.create_server(("127.0.0.1", 0)))
        if len(self._held) > 200:
            self._held.pop(random.randrange(len(self._held))).close()


@pytest.mark.parametrize(
    ("trees", "rounds"),
    [
        pytest.param(3, 1, id="short"),
        pytest.param(8, 20, id="long", marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
def test_a14_trees_that_start_together_all_start(start, trees, rounds):
    """With someone about who takes every free port that could be had for a moment."""
    for _ in range(rounds):
        with PortGrabber():
            started = [start(*NULL, "--dp", 2, "--tp", 2, ready=False, port=0) for _ in range(trees)]
            results = in_parallel([lambda tree=tree: tree.wait_ready(60 + 10 * trees) for tree in started])
        assert [type(result) for result in results] == [Tree] * trees, results
        assert len({tree.port for tree in started}) == trees
        for tree in started:
            assert len(tree.text("x", max_tokens=3, ignore_eos=True)) > 0
        assert in_parallel([tree.stop for tree in started]) == [(0, {})] * trees
        for tree in started:
            tree.close()


def adjacent_ports():
    while True:
        first = free_port()
        try:
            with socket.create_server(("127.0.0.1", first + 1)):
                return first, first + 1
        except OSError:
            continue


def test_a15_two_trees_of_one_user_do_not_meet(start, tmp_path):
    """Same directory, adjacent ports: a request to one never shows in the other."""
    first, second = (
        start(*NULL, "--served-model-name", f"m{port}", port=port, cwd=tmp_path) for port in adjacent_ports()
    )
    streams = [Streaming(first, max_tokens=20, prompt=str(number)) for number in range(10)]
    assert set(endings(streams)) == {"done"}
    assert first.total("request_success_total") == 10
    assert second.total("request_success_total") == 0
    assert (first.model, second.model) == (f"m{first.port}", f"m{second.port}")
    first.kill("engine-0")
    time.sleep(0.5)
    second.sentinel()
    assert first.stop() == (0, {})
    second.sentinel()
    assert second.total("request_success_total") == 2
    assert "lost" not in second.log


NOBODY = {"user": 65_534, "group": 65_534, "extra_groups": []}


def as_nobody(command, home):
    """What a command of the other user says. Raises OSError or CalledProcessError."""
    return subprocess.check_output([ACTORLM, command], cwd=home["HOME"], env=os.environ | home, text=True, **NOBODY)


@pytest.fixture
def their_home(home):
    """The same directories as ours where those are for all, and a home of their own. Skips where there can be none."""
    if os.geteuid() != 0:
        pytest.skip("another user needs root")
    theirs = Path(home["HOME"]).with_name("theirs")
    theirs.parent.chmod(0o755)
    for shared in ("XDG_RUNTIME_DIR", "TMPDIR"):
        Path(home[shared]).chmod(0o1777)
    theirs.mkdir()
    os.chown(theirs, NOBODY["user"], NOBODY["group"])
    found = home | {"HOME": str(theirs), "XDG_CACHE_HOME": str(theirs)}
    try:
        as_nobody("--version", found)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"another user cannot run actorlm: {error}")
    return found


def test_a15_two_trees_of_two_users_do_not_meet(start, home, their_home):
    """They find neither each other's files nor each other's trees, and a request to one never shows in the other."""
    ours, theirs = start(*NULL, env=home), start(*NULL, env=their_home, cwd=their_home["HOME"], **NOBODY)
    for tree, count in ((ours, 2), (theirs, 3)):
        for number in range(count):
            tree.text(f"{number}", max_tokens=2)
    assert [tree.total("request_success_total") for tree in (ours, theirs)] == [2, 3]
    bases = {base.stat().st_uid: base for base in Path(home["XDG_RUNTIME_DIR"]).iterdir()}
    assert set(bases) == {0, NOBODY["user"]}
    assert all(stat.S_IMODE(base.stat().st_mode) == 0o700 for base in bases.values())
    said = as_nobody("ps", their_home)
    assert theirs.url in said
    assert ours.url not in said
    theirs.signal_all(signal.SIGKILL)
    until(lambda: theirs.processes() == {}, 10)
    again = start(*NULL, env=their_home, cwd=their_home["HOME"], **NOBODY)
    again.sentinel()
    ours.sentinel()
    assert [tree.stop() for tree in (again, ours)] == [(0, {})] * 2
    assert list(Path(home["XDG_RUNTIME_DIR"]).iterdir()) == []
