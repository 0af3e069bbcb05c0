"""How the processes of a launcher come to the one that leads them, and what it learns of their ends."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import msgspec
import pytest

from actorlm.errors import ConfigError, PeerMissing
from actorlm.runtime.child import LastWords
from actorlm.runtime.launched import Door, join, read_line

RANK = """
import os, sys
from pathlib import Path
from actorlm.runtime.launched import join, read_line
leader = join(lambda: Path(sys.argv[1]), int(sys.argv[2]), 20)
what = read_line(leader)
if what == b"wait":
    leader.recv(1)
else:
    os.write(leader.fileno(), what)
"""
PATIENCE_S = 30


@pytest.fixture
def path(tmp_path):
    return tmp_path / "base" / "door"


@pytest.fixture
def door(path):
    path.parent.mkdir()
    with Door(path) as door:
        yield door


@pytest.fixture
def start(path):
    processes = []

    def begin(rank):
        processes.append(subprocess.Popen([sys.executable, "-c", RANK, str(path), str(rank)]))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.wait()


async def _end_of(process):
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    process.watch(loop.add_reader, ended.set)
    await asyncio.wait_for(ended.wait(), PATIENCE_S)
    return process.reap(loop.remove_reader)


def test_each_comes_with_its_rank_and_its_pid(door, start, path):
    started = {rank: start(rank) for rank in (2, 1, 3)}
    came = door.gather(4, PATIENCE_S)
    assert {rank: process.pid for rank, process in came.items()} == {
        rank: process.pid for rank, process in started.items()
    }
    assert not path.exists()
    assert not path.parent.exists()


def test_a_leader_alone_waits_for_nobody(door):
    assert door.gather(1, 0) == {}


async def test_how_a_launched_process_ended_is_told(door, start):
    start(1), start(2)
    came = door.gather(3, PATIENCE_S)
    came[1].begin(msgspec.json.encode(LastWords("ModelError", "no such model", True, "")))
    came[2].begin(b"wait")
    assert await _end_of(came[1]) == "no such model"
    came[2].signal(signal.SIGKILL)
    assert await _end_of(came[2]) == "rank 2 has ended without a word"


async def test_a_process_that_has_ended_can_be_told_and_signalled(door, start):
    process = start(1)
    came = door.gather(2, PATIENCE_S)
    process.kill()
    process.wait()
    came[1].begin(b"x" * 1_000_000)
    came[1].signal(signal.SIGKILL)
    assert await _end_of(came[1]) == "rank 1 has ended without a word"


def test_who_does_not_come_is_named(door, start):
    start(2)
    with pytest.raises(PeerMissing, match=r"rank 1, 3 of 4 did not come within 2 s"):
        door.gather(4, 2)


def test_one_that_ends_while_others_are_waited_for(door, start):
    process = start(1)
    threading.Timer(2, process.kill).start()
    with pytest.raises(PeerMissing, match=rf"rank 1 has ended without a word \(pid {process.pid}\) before all"):
        door.gather(3, PATIENCE_S)


@pytest.mark.parametrize("rank", [0, 2, -1])
def test_a_rank_that_is_not_to_come_is_refused(door, start, rank):
    start(rank)
    with pytest.raises(ConfigError, match=f"says RANK {rank}, which is not one of those that are to come"):
        door.gather(2, PATIENCE_S)


def test_a_rank_that_comes_twice_is_refused(door, start):
    start(1), start(1)
    with pytest.raises(ConfigError, match="says RANK 1"):
        door.gather(3, PATIENCE_S)


def test_a_stranger_is_refused(door, path):
    strange = join(lambda: path, "x", 1)
    with strange, pytest.raises(PeerMissing, match=f"pid {os.getpid()}.* did not say its rank"):
        door.gather(2, PATIENCE_S)


def test_two_leaders_do_not_share_a_place(door, path, start):
    """The first one is not disturbed."""
    with pytest.raises(ConfigError, match="give each job a MASTER_PORT of its own"):
        Door(path)
    start(1)
    assert set(door.gather(2, PATIENCE_S)) == {1}


def test_the_place_of_a_leader_that_was_killed_is_free(path, start):
    path.parent.mkdir()
    left = Door(path)
    left._socket.close()  # what the kernel does for a leader that was killed
    with Door(path) as door:
        start(1)
        assert set(door.gather(2, PATIENCE_S)) == {1}


def test_a_leader_that_leaves_is_noticed(door, path):
    connection = join(lambda: path, 1, 1)
    threading.Timer(0.1, door.close).start()
    with connection:
        assert read_line(connection) == b""


def test_a_leader_that_is_not_there_yet_is_waited_for(path, tmp_path):
    path.parent.mkdir()
    doors = []
    threading.Timer(0.3, lambda: doors.append(Door(path))).start()
    found = iter([None])
    join(lambda: next(found, path), 1, PATIENCE_S).close()
    doors[0].close()


def test_a_leader_that_never_comes_is_waited_for_so_long(tmp_path):
    began = time.monotonic()
    with pytest.raises(PeerMissing, match=r"rank 3 has not found rank 0 on this machine within 0.2 s"):
        join(lambda: tmp_path / "none", 3, 0.2)
    assert time.monotonic() - began >= 0.2
