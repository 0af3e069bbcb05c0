"""What the Ray executor decides without a cluster. Whole trees are in tests/serving/test_ray_trees.py."""

import asyncio
import json
import signal
from types import SimpleNamespace

import pytest

from actorlm.errors import ConfigError

pytest.importorskip("ray", reason="the extra `ray` is not installed")

from actorlm.executors import ray as ray_executor
from actorlm.executors.ray import RayProcess, check_room, placed
from actorlm.topology import PlannedProcess, Role, Topology

WORKER = PlannedProcess(name="worker-0-0", role=Role.WORKER, group="engine-0")
PLANNED = Topology(directory="/x", executor="ray", kv_cache_tokens=16, threads=1, processes=(WORKER,))


@pytest.mark.parametrize(
    ("replicas", "ranks", "threads", "nodes"),
    [(1, 1, 1, [1.0]), (2, 2, 1, [2.0, 2.0]), (2, 2, 1, [4.0]), (3, 2, 2, [9.0, 0, 4.0])],
)
def test_replicas_that_fit(replicas, ranks, threads, nodes):
    check_room(replicas, ranks, threads, nodes)


@pytest.mark.parametrize(
    ("replicas", "ranks", "threads", "nodes"),
    [(1, 1, 1, []), (1, 3, 1, [2.0, 2.0]), (3, 2, 1, [3.0, 3.0]), (1, 1, 4, [2.0, 2.0])],
)
def test_a_replica_does_not_span_nodes(replicas, ranks, threads, nodes):
    with pytest.raises(
        ConfigError, match=rf"{replicas} replica\(s\) of {ranks} bundle\(s\) with {threads} CPU.*--threads"
    ):
        check_room(replicas, ranks, threads, nodes)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("ray://10.0.0.1:10001", "HOST:PORT"),
        ("10.0.0.1", "HOST:PORT"),
        ("127.0.0.1:99999", "cannot connect"),
        ("127.0.0.1:1", "cannot connect"),
    ],
)
def test_an_address_where_no_cluster_is(address, why):
    with pytest.raises(ConfigError, match=f"--ray-address {address}: .*{why}"), placed(PLANNED, address, 1.0):
        pass


async def end_of(process):
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    process.watch(loop.add_reader, ended.set)
    await asyncio.wait_for(ended.wait(), 5)
    return process.reap(loop.remove_reader)


@pytest.fixture
def begin(monkeypatch):
    """A process of an actor that answers at once."""
    killed = []
    answers = SimpleNamespace(get=lambda answer, timeout=None: answer, kill=killed.append)
    monkeypatch.setattr(ray_executor, "ray", answers)

    def begin(host, pid):
        start = SimpleNamespace(remote=lambda *_: json.dumps({"host": host, "pid": pid}))
        wait = SimpleNamespace(remote=lambda: "killed by SIGUSR1")
        return RayProcess(SimpleNamespace(start=start, wait=wait), "worker-0-1", b"{}", {})

    yield begin
    assert len(killed) == 1, "its bundle is free"


async def test_a_process_ends_when_it_has_and_as_its_actor_says(begin):
    child = await asyncio.create_subprocess_exec("sleep", "60")
    process = begin("a", child.pid)
    end = asyncio.create_task(end_of(process))
    await asyncio.sleep(0.2)
    assert process.pid == child.pid
    assert not end.done()
    process.signal(signal.SIGUSR1)
    assert await end == "killed by SIGUSR1"
    assert await child.wait() == -signal.SIGUSR1


async def test_a_worker_on_another_machine_is_refused_by_name(begin):
    end = await end_of(begin("b", 0))
    assert end.startswith("Ray has placed worker-0-1 on b, which is another machine")
