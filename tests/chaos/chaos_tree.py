"""What a tree's processes do, seen from outside: who they are, which of them are ready, what they hold."""

import re
from pathlib import Path

from hostile import bound_sockets

from actorlm.instance import reach_of
from actorlm.operator import Door, describe_tree

UNDER_FIRE = (
    "--max-restarts", 100_000, "--restart-window-s", 1, "--max-restart-pause-s", 0.2, "--heartbeat-timeout-s", 4
)  # fmt: skip
"""Options of a tree that is killed again and again: nobody gives up, and who is silent is soon found."""


def processes(tree):
    """{actor: pid}, also of those that have just begun; without the supervisor."""
    found = {}
    for pid, title in tree.processes().items():
        named = re.search(r"actorlm(?:\.process)? ([a-z]+(?:-\d+)*)(?: |$)", title)
        if named and named[1] != "supervisor":
            found[named[1]] = pid
    return found


def door_of(tree):
    """Where a tree answers to its operators."""
    directory = Path(bound_sockets(tree)["supervisor"]).parent
    return Door(str(directory), reach_of(directory), directory)


async def states(door):
    """{actor: (pid, state)}, as `actorlm ps` has it; empty if there is no answer."""
    described = await describe_tree(door)
    if isinstance(described, str):
        return {}
    return {one.name: (one.pid, one.state) for one in described.actors}


def footprint(tree):
    """{actor: (KiB of memory, descriptors)} of the supervisor and all actors."""
    pids = processes(tree) | {"supervisor": tree.process.pid}
    return {name: (tree.memory_kib(pid), len([*Path(f"/proc/{pid}/fd").iterdir()])) for name, pid in pids.items()}
