"""What the Ray executor decides without a cluster. Whole trees are in tests/serving/test_ray_trees.py."""

import pytest

from actorlm.errors import ConfigError

pytest.importorskip("ray", reason="the extra `ray` is not installed")

from actorlm.executors.ray import check_room, placed
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
