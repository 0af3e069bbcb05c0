"""A supervised process, with a child that does what its specification says."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from actorlm.runtime.child import ChildProcess, describe_exit

CHILD = """
import asyncio, os, sys
from actorlm.runtime.child import *
die_with_parent(int(sys.argv[sys.argv.index("--parent") + 1]))
report = take_report_pipe()
what = read_specification().decode().strip()
if what == "print":
    print("this goes to standard error")
elif what == "words":
    import msgspec
    os.write(report, msgspec.json.encode(LastWords("ModelError", "no such model", True, "Traceback")))
    sys.exit(1)
elif what == "bug":
    import msgspec
    os.write(report, msgspec.json.encode(LastWords("KeyError", "'x'", False, "Traceback of the bug")))
    sys.exit(1)
elif what == "exit":
    sys.exit(3)
elif what == "wait":
    async def wait():
        asyncio.get_running_loop().add_reader(0, leave_with_supervisor)
        await asyncio.sleep(60)
    asyncio.run(wait())
"""


@pytest.fixture
def spawn(tmp_path):
    (tmp_path / "example_child.py").write_text(CHILD)
    children = []

    def start(what):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        child = ChildProcess.spawn(["example_child"], what.encode(), environment, [])
        children.append(child)
        return child

    yield start
    for child in children:
        with contextlib.suppress(OSError):
            child.signal(signal.SIGKILL)


async def _end_of(child):
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    child.watch(loop.add_reader, ended.set)
    await asyncio.wait_for(ended.wait(), 20)
    return child.reap(loop.remove_reader)


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("print", "exited with status 0"),
        ("exit", "exited with status 3"),
        ("words", "no such model"),
        ("bug", "KeyError: 'x'\nTraceback of the bug"),
    ],
)
async def test_how_a_child_ended_is_told(spawn, what, how):
    assert await _end_of(spawn(what)) == how


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
async def test_a01_the_signal_that_ended_a_child_is_named(spawn, number):
    child = spawn("wait")
    await asyncio.sleep(0.5)
    child.signal(number)
    assert await _end_of(child) == f"killed by {number.name}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
async def test_a11_a_child_never_dies_of_its_supervisors_signals(spawn, number):
    child = spawn("exit")
    child.signal(number)
    assert await _end_of(child) == "exited with status 3"


async def test_a_signal_to_a_child_that_has_ended_does_no_harm(spawn):
    child = spawn("exit")
    await asyncio.sleep(0.5)
    child.signal(signal.SIGTERM)
    assert await _end_of(child) == "exited with status 3"


async def test_a_child_imports_nothing_from_the_working_directory(spawn, tmp_path, monkeypatch):
    """Whoever starts a tree next to a file named like a module of the library still gets the library."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "asyncio.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(elsewhere)
    assert await _end_of(spawn("exit")) == "exited with status 3"


def test_an_unreadable_report_is_no_last_words():
    assert describe_exit(1, b'{"error": 1}') == "exited with status 1"


PARENT = """
import os, sys
from actorlm.runtime.child import ChildProcess
child = ChildProcess.spawn(["example_child"], b"wait", {**os.environ, "PYTHONPATH": sys.argv[1]}, [])
print(child.pid, flush=True)
sys.stdin.read()
"""


def _alive(pid):
    with contextlib.suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.7])
def test_a04_no_child_outlives_a_parent_that_is_killed(tmp_path, delay):
    (tmp_path / "example_child.py").write_text(CHILD)
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    time.sleep(delay)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while _alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
