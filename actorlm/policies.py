"""What follows the death of an actor, by its role, and within which bounds: options in, a `Supervision` out."""

import math
from collections.abc import Callable, Iterable

from actorlm.config import Config
from actorlm.runtime.children import Child, OnDeath
from actorlm.runtime.intensity import Intensity
from actorlm.runtime.pulse import Pulse
from actorlm.runtime.supervision import Limits, Supervision
from actorlm.runtime.watch import Patience
from actorlm.topology import PlannedProcess, Role, Topology

ON_DEATH: dict[Role, OnDeath] = {
    Role.FRONTEND: OnDeath.RESTART_ALONE,
    Role.BALANCER: OnDeath.RESTART_ALONE,
    Role.DETOKENIZER: OnDeath.RESTART_ALONE,
    Role.ENGINE: OnDeath.RESTART_GROUP,
    Role.WORKER: OnDeath.RESTART_GROUP,
}
"""Workers that a launcher has started are the exception: they end the tree, and the launcher starts the job again."""


HOST_SLACK_TICKS = 1
"""TCP is silent for up to as long as a gap was once more, and a heartbeat was due before: 5 s lose no host in 10 s."""
CHILD_SLACK_TICKS = HOST_SLACK_TICKS + 1
"""If a host is silent, that is noticed before its processes are."""


def supervision(config: Config, topology: Topology, pulse: Pulse, host: str, absent: Iterable[str] = ()) -> Supervision:
    """The supervision of all processes of a tree, on this host and those that are still `absent`."""
    children = [child_of(process, host) for process in topology.processes]
    for child, process in zip(children, topology.processes, strict=True):
        child.slack_ticks = CHILD_SLACK_TICKS if process.host != topology.lead else 0
    return Supervision(children, limits(config, pulse), absent)


def child_of(process: PlannedProcess, machine: str) -> Child:
    """A planned process as its supervisor sees it. Its host is the planned one, or else the `machine`."""
    host = process.host or machine
    on_death = ON_DEATH[process.role] if process.launched_rank is None else OnDeath.END_TREE
    return Child(process.name, process.role, process.group, on_death, host=host, ranks=_ranks(process))


def spare_frontends(topology: Topology, machine: str) -> Callable[[str, int], Child]:
    """Gives the frontend that stands in for one of them, by its name and how often there have been spare ones."""
    spares = dict(zip((one.name for one in topology.of_role(Role.FRONTEND)), topology.spares, strict=True))

    def child(frontend: str, lives: int) -> Child:
        spare = spares[frontend]
        host = spare.host or machine
        return Child(spare.name, spare.role, spare.group, OnDeath.LET_GO, host=host, incarnation=lives)

    return child


def limits(config: Config, pulse: Pulse) -> Limits:
    """How much restarting, silence and waiting these options allow."""
    options = config.supervision
    return Limits(
        intensity=Intensity(options.max_restarts, options.restart_window_s, options.max_restart_pause_s),
        patience=Patience(
            tick_s=pulse.beat_s,
            silence_ticks=pulse.beats,
            stall_ticks=max(pulse.beats, math.ceil(options.stall_timeout_s / pulse.beat_s)),
        ),
        start_timeout_s=options.start_timeout_s,
    )


def _ranks(process: PlannedProcess) -> str:
    """Which replica an engine or worker belongs to, and where in it tensors are computed."""
    if process.role not in (Role.ENGINE, Role.WORKER):
        return ""
    place = process.place
    within = f" pp{place.pipeline_rank} tp{place.tensor_rank}" if place is not None else ""
    return f"dp{process.index}{within}"
