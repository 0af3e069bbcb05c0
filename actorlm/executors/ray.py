"""Worker processes placed by Ray: a bundle for each worker, the bundles of a replica packed on one node.

Only placing and starting differ from the broadcast executor: the workers, their sockets and what is said over them are
the same. Used in the supervisor's process, and imported there with `--executor ray` alone. Only strings cross Ray.
"""

import contextlib
import os
import select
import signal
import socket
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actorlm.errors import ConfigError
from actorlm.executors.ray_starter import Started, Starter
from actorlm.runtime.identity import machine
from actorlm.topology import PlannedProcess, Role, Topology

OBJECT_STORE_BYTES = 80 << 20
"""The least that Ray takes; strings need no more."""
ERROR_LENGTH = 500
"""Characters of what Ray says; most of it is advice."""
REACH_S = 5.0
ANSWER_S = 2.0
"""Time in which an actor says how its process ended; it may have been stopped."""
LOOK_S = 1
"""Signals are not heard while Ray waits for a placement."""


class RayProcess:
    """A process that a Ray actor starts. `pid` is 0 until it has; the rest as of ChildProcess.

    Ray starts it and knows how it ended; that it has ended, and signals, are between this process and that one.
    """

    def __init__(self, actor: Any, name: str, specification: bytes, variables: Mapping[str, str]) -> None:
        self._actor = actor
        self._name = name
        self.pid = 0
        self._pidfd: int | None = None
        self._how = ""
        self._ended = os.eventfd(0, os.EFD_CLOEXEC)
        order = (machine(), name, specification.decode(), msgspec.json.encode(variables).decode())
        self._thread = threading.Thread(target=self._follow, args=order, name=f"ray {name}", daemon=True)
        self._thread.start()

    def watch(self, add_reader: Callable[[int, Callable[[], None]], None], on_exit: Callable[[], None]) -> None:
        """Has the event loop call `on_exit` when the process has ended."""
        add_reader(self._ended, on_exit)

    def reap(self, remove_reader: Callable[[int], object]) -> str:
        """Says how the ended process ended, and gives its bundle back."""
        remove_reader(self._ended)
        self._thread.join()
        os.close(self._ended)
        if self._pidfd is not None:
            os.close(self._pidfd)
        ray.kill(self._actor)
        return self._how

    def signal(self, number: int) -> None:
        """Sends a signal; one to a process that has not started ends its actor, with which it dies."""
        if self._pidfd is None:
            ray.kill(self._actor)
        else:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _follow(self, *order: str) -> None:
        try:
            self._how = self._live(*order)
        except RayActorError as error:
            self._how = f"its Ray actor is gone: {_brief(error)}"
        except RayError as error:
            self._how = f"its Ray actor does not say how it ended: {_brief(error)}"
        finally:
            os.eventfd_write(self._ended, 1)

    def _live(self, *order: str) -> str:
        started = msgspec.json.decode(ray.get(self._actor.start.remote(*order)), type=Started)
        if not started.pid:
            return (
                f"Ray has placed {self._name} on {started.host}, which is another machine than the supervisor's;"
                " workers of several machines are not supported: use a cluster that has nodes on this machine alone"
            )
        self.pid = started.pid
        with contextlib.suppress(ProcessLookupError):  # its actor was killed meanwhile
            self._pidfd = os.pidfd_open(started.pid)
            ending = select.poll()
            ending.register(self._pidfd, select.POLLIN)
            ending.poll()
        how: str = ray.get(self._actor.wait.remote(), timeout=ANSWER_S)
        return how


Start = Callable[[PlannedProcess, bytes, Mapping[str, str]], RayProcess]
"""Starts a worker's process, from its specification and what its environment must have."""


class RayPlacement:
    """The placement groups of a tree's replicas."""

    def __init__(self, groups: Sequence[Any], threads: int) -> None:
        self._groups = groups
        self._threads = threads
        self._starter = ray.remote(Starter)

    def start(self, process: PlannedProcess, specification: bytes, variables: Mapping[str, str]) -> RayProcess:
        """Starts a worker's process in its bundle."""
        assert process.place is not None, "workers have a place"
        strategy = PlacementGroupSchedulingStrategy(self._groups[process.index], process.place.rank)
        actor = self._starter.options(num_cpus=self._threads, scheduling_strategy=strategy).remote()
        return RayProcess(actor, process.name, specification, variables)


@contextlib.contextmanager
def placed(topology: Topology, address: str | None, timeout_s: float) -> Iterator[Start]:
    """Joins a Ray cluster, or starts one, for as long as the context lasts, and places the workers' bundles there.

    Raises ConfigError if there is no such cluster or if it has no room within `timeout_s`.
    """
    workers = topology.of_role(Role.WORKER)
    replicas = max(worker.index for worker in workers) + 1
    bundles = [{"CPU": topology.threads}] * (len(workers) // replicas)
    try:
        _join(address, topology.threads * len(workers))
        check_room(replicas, len(bundles), topology.threads, [node["Resources"].get("CPU", 0) for node in _nodes()])
        groups = [placement_group(bundles, strategy="STRICT_PACK") for _ in range(replicas)]
        _wait_for(groups, timeout_s)
        yield RayPlacement(groups, topology.threads).start
        for group in groups:
            remove_placement_group(group)
    finally:
        ray.shutdown()  # a tree that fails leaves no groups either: Ray removes what a job leaves


def check_room(replicas: int, ranks: int, threads: int, nodes: Sequence[float]) -> None:
    """Raises ConfigError unless nodes of so many CPUs could hold the replicas, each on one of them."""
    if sum(int(cpus // (ranks * threads)) for cpus in nodes) < replicas:
        raise ConfigError(
            f"--executor ray: {replicas} replica(s) of {ranks} bundle(s) with {threads} CPU(s) each, a replica on one"
            f" node, do not fit nodes with {', '.join(f'{cpus:g}' for cpus in nodes) or 'no'} CPUs;"
            " lower --dp, --tp, --pp or --threads, or add nodes"
        )


def _join(address: str | None, cpus: int) -> None:
    """Connects to the cluster at `address`, or starts one with so many CPUs, which ends with this process."""
    if address is not None and address != "auto":
        _reach(address)
    options: dict[str, Any] = {"address": address}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # whoever starts a model has not asked Ray to report it
        options = {
            "address": "local",
            "num_cpus": cpus,
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options, logging_level="error")
    except Exception as error:
        what = "Ray does not start" if address is None else f"--ray-address {address}: no cluster to use"
        raise ConfigError(f"--executor ray: {what}: {_brief(error)}") from error
    except SystemExit as end:
        if end.code != signal.SIGTERM:
            raise
        raise SystemExit(0) from None  # what SIGTERM means before there is a supervisor; Ray has put its own handler
    finally:
        signal.signal(signal.SIGTERM, before)


def _reach(address: str) -> None:
    """Raises ConfigError if nobody listens there: Ray itself tries for minutes, deaf to signals."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise ConfigError(f"--ray-address {address}: give HOST:PORT of the cluster's head, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--ray-address {address}: cannot connect ({error}); is `ray start --head` running?"
        ) from None


def _nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _wait_for(groups: Sequence[Any], timeout_s: float) -> None:
    """Returns when all groups are placed. Raises ConfigError if they are not in time: others have the CPUs."""
    deadline = time.monotonic() + timeout_s
    for group in groups:
        while not group.wait(LOOK_S):
            if time.monotonic() > deadline:
                free, cpus = (found.get("CPU", 0) for found in (ray.available_resources(), ray.cluster_resources()))
                raise ConfigError(
                    f"--executor ray: {len(groups)} replica(s) of {group.bundle_count} bundle(s) found no room within"
                    f" {timeout_s:g} s; {free:g} of the cluster's {cpus:g} CPUs are free: stop what uses the others,"
                    " or raise --start-timeout-s"
                )


def _brief(error: BaseException) -> str:
    return textwrap.shorten(str(error), ERROR_LENGTH, placeholder=" ...")
