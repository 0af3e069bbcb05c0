"""`actorlm up` in a process of a launcher's: rank 0 leads a tree whose workers are the other ranks.

They find rank 0 by a socket file that is named after the job, in the directory where this user's trees are, and get
from it the specification that a child gets. Of n workers in each replica, number i of replica k is rank k * n + i.
"""

import os
import signal
import socket

import msgspec
from setproctitle import setproctitle

from actorlm.config import Config, Launched, launched
from actorlm.errors import ConfigError, PeerMissing
from actorlm.instance import base_directory, find_in_base
from actorlm.launch import Specification, run_child
from actorlm.log import configure_logging
from actorlm.planning import child_environment
from actorlm.runtime.child import SUPERVISORS_SIGNALS, run_reporting
from actorlm.runtime.launched import Door, join, read_line
from actorlm.up import run_tree


def run_rank(config: Config) -> int:
    """Leads or follows, as the launcher says; returns the exit status.

    Raises ConfigError if the launcher says too little, or has started what these options do not need.
    """
    job = launched()
    check(job, config)
    return _follow(config, job) if job.rank else _lead(config, job)


def check(job: Launched, config: Config) -> None:
    """Raises ConfigError unless the job's processes are the workers of these options, on this machine."""
    parallel = config.parallel
    workers = parallel.data * parallel.tensor * parallel.pipeline
    if job.world_size != workers:
        raise ConfigError(
            f"--executor external: WORLD_SIZE is {job.world_size}, but --dp {parallel.data} --tp {parallel.tensor}"
            f" --pp {parallel.pipeline} make {workers} workers; launch as many processes"
        )
    if job.rank >= job.world_size:
        raise ConfigError(f"--executor external: RANK is {job.rank}; it must be less than WORLD_SIZE, {job.world_size}")
    if not _is_here(job.master_addr):
        raise ConfigError(
            f"--executor external: MASTER_ADDR is {job.master_addr}, which is no address of this machine"
            f" ({socket.gethostname()}); all ranks must be on one machine"
        )


def _is_here(host: str) -> bool:
    """Whether a socket can be bound to this name or address."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, _, _, address in found:
        with socket.socket(family, kind) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return True
    return False


def _name(job: Launched) -> str:
    """Of the socket file: a launcher that starts the job again may do so before all of the last attempt are gone."""
    return f"launched-{job.master_port}-{job.attempt}"


def _lead(config: Config, job: Launched) -> int:
    setproctitle("actorlm supervisor")
    configure_logging(config.supervision.log_level, "supervisor", config.observability.log_format)
    with Door(base_directory() / _name(job)) as door:
        return run_tree(config, lambda: door.gather(job.world_size, config.supervision.start_timeout_s))


def _follow(config: Config, job: Launched) -> int:
    setproctitle(f"actorlm rank {job.rank}")
    leader = join(lambda: find_in_base(_name(job)), job.rank, config.supervision.start_timeout_s)
    specification = read_line(leader)
    if not specification:
        raise PeerMissing(f"rank 0 has ended before it had work for rank {job.rank}")
    for number in SUPERVISORS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # launchers send them to all; the supervisor answers them
    return _run(specification, leader)


def _run(specification: bytes, leader: socket.socket) -> int:
    """Runs the worker in this process, as a child would."""
    spec = msgspec.json.decode(specification, type=Specification)
    setproctitle(f"actorlm {spec.process.name}")
    os.environ.update(child_environment(spec.topology, os.environ))
    os.dup2(leader.fileno(), 0, inheritable=False)  # the control pipe
    return run_reporting(lambda: run_child(specification), leader.fileno())
