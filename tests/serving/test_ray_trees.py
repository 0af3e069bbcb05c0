"""Whole trees whose workers Ray has placed: in a Ray of their own, and in a cluster of two nodes on this machine."""

import contextlib
import os
import signal

import psutil
import pytest
from streaming import endings, running
from tree import in_parallel, until

pytestmark = [pytest.mark.serving, pytest.mark.timeout(900)]

pytest.importorskip("ray", reason="the extra `ray` is not installed")

RAY = ("--executor", "ray", "--threads", 1)
NULL = ("--model-impl", "null", "--null-step-ms", 20)
GREEDY = {"temperature": 0, "max_tokens": 64}
START_S = 90


def workers(ancestor):
    """{name: process} of all workers below a process."""
    found = {}
    for process in psutil.Process(ancestor).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            title = "".join(process.cmdline()).strip()
            if title.startswith("actorlm worker-"):
                found[title.removeprefix("actorlm ")] = process
    return found


def until_whole_again(tree):
    """After the other replica has gone on alone."""
    until(lambda: tree.client.get("/health").json() == {"status": "degraded"}, 5)
    tree.sentinel()
    until(lambda: tree.client.get("/health").json() == {"status": "ready"}, START_S)


def lost(tree):
    return [line for line in tree.log.splitlines() if line.startswith("lost ")]


def test_golden_prompts_before_and_after_a_worker_dies(start, golden, golden_texts):
    """In a Ray that ends with the tree."""
    tree = start("--dtype", "float32", "--tp", 3, *RAY, ready=False).wait_ready(START_S)
    ask = [lambda item=item: tree.text(item["prompt_ids"], **GREEDY) for item in golden]
    assert in_parallel(ask) == golden_texts
    victim = workers(tree.process.pid)["worker-0-1"]
    streams = running(tree, 2)
    victim.kill()
    assert set(endings(streams, 20)) == {"error"}
    until(lambda: tree.client.get("/ready").status_code == 200, START_S)
    assert lost(tree) == [f"lost worker-0-1 (pid {victim.pid}): killed by SIGKILL"]
    assert in_parallel(ask) == golden_texts
    assert tree.stop(seconds=40) == (0, {})


class Cluster:
    """Two nodes of two CPUs each."""

    def __init__(self):
        from ray.cluster_utils import Cluster as Nodes

        size = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
        self._nodes = Nodes(initialize_head=True, head_node_args=size)
        self._nodes.add_node(num_cpus=2, object_store_memory=80 << 20)
        self.address = self._nodes.address

    def workers(self):
        """{name: pid of its raylet}"""
        return {
            name: next(above.pid for above in process.parents() if above.name() == "raylet")
            for name, process in workers(os.getpid()).items()
            if any(above.name() == "raylet" for above in process.parents())
        }

    def close(self):
        self._nodes.shutdown()


@pytest.fixture(scope="module")
def cluster():
    two_nodes = Cluster()
    yield two_nodes
    two_nodes.close()


def test_replicas_on_two_nodes(start, cluster):
    tree = start(*NULL, *RAY, "--dp", 2, "--tp", 2, "--ray-address", cluster.address, ready=False).wait_ready(START_S)
    expected = tree.text("0", temperature=0, max_tokens=20)
    assert in_parallel([lambda: tree.text("0", temperature=0, max_tokens=20)] * 8) == [expected] * 8
    node_of = cluster.workers()
    assert sorted(node_of) == ["worker-0-0", "worker-0-1", "worker-1-0", "worker-1-1"]
    assert node_of["worker-0-0"] == node_of["worker-0-1"] != node_of["worker-1-0"] == node_of["worker-1-1"]

    late = start(*NULL, *RAY, "--ray-address", cluster.address, "--start-timeout-s", 3, ready=False)
    assert late.wait(START_S) == 2
    assert "found no room within 3 s; 0 of the cluster's 4 CPUs are free" in late.log

    victim = workers(os.getpid())["worker-0-1"]
    victim.kill()
    until_whole_again(tree)
    assert lost(tree) == [f"lost worker-0-1 (pid {victim.pid}): killed by SIGKILL"]

    victim = workers(os.getpid())["worker-1-0"]
    victim.parent().kill()
    until(lambda: not victim.is_running(), 2)
    until_whole_again(tree)
    assert len(lost(tree)) == 2
    assert lost(tree)[1].startswith(f"lost worker-1-0 (pid {victim.pid}): its Ray actor is gone")

    assert tree.stop(seconds=40) == (0, {})
    assert cluster.workers() == {}


def test_what_does_not_fit_is_refused_at_once(start, cluster):
    tree = start(*NULL, *RAY, "--dp", 3, "--tp", 2, "--ray-address", cluster.address, ready=False)
    assert tree.wait(START_S) == 2
    last = tree.log.splitlines()[-1]
    assert "3 replica(s) of 2 bundle(s) with 1 CPU(s) each, a replica on one node, do not fit nodes with 2, 2" in last


def test_a04_no_worker_outlives_a_supervisor_that_is_killed(start, cluster):
    """Ray's processes are not its children here, and its bundles are free again."""
    tree = start(*NULL, *RAY, "--tp", 2, "--ray-address", cluster.address, ready=False).wait_ready(START_S)
    assert len(cluster.workers()) == 2
    tree.process.send_signal(signal.SIGKILL)
    until(lambda: cluster.workers() == {}, 20)
    start(*NULL, *RAY, "--dp", 2, "--tp", 2, "--ray-address", cluster.address, ready=False).wait_ready(START_S)
