"""What a tree's processes do, seen from outside: who they are, which of them are ready, what they hold."""

import asyncio
import contextlib
import os
import re
from contextlib import asynccontextmanager
from pathlib import Path

from hostile import bound_sockets

from actorlm.messages.catalog import INBOXES, protocol
from actorlm.messages.operator import TreeDescribed
from actorlm.messages.supervisor import DescribeTree
from actorlm.runtime.errors import NotConnected
from actorlm.runtime.events import LinkUp
from actorlm.runtime.identity import this_process
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.zeromq import ZeroMQNetwork
from actorlm.topology import Role

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


class Eye:
    """Looks at a tree over its control socket, as `actorlm ps` does."""

    def __init__(self, link, mailbox):
        self._link = link
        self._mailbox = mailbox

    async def states(self):
        """{actor: (pid, state)}; empty if there is no answer within some seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                return await self._ask()
        return {}

    async def _ask(self):
        self._say()
        while True:
            for _, message in await self._mailbox.drain():
                if isinstance(message, LinkUp):
                    self._say()  # what was said in the session before is lost with it
                elif isinstance(message, TreeDescribed):
                    return {one.name: (one.pid, one.state) for one in message.actors}

    def _say(self):
        with contextlib.suppress(NotConnected):
            self._link.send(DescribeTree())


@asynccontextmanager
async def looking_at(tree):
    """An Eye for as long as the block runs."""
    network = ZeroMQNetwork(protocol())
    mailbox = Mailbox(Role.OPERATOR, 64, Overflow.PAUSE)
    link = network.connect(
        f"ipc://{bound_sockets(tree)['supervisor']}",
        peer=Role.SUPERVISOR,
        identity=this_process(Role.OPERATOR, f"{Role.OPERATOR}-{os.getpid()}"),
        mailbox=mailbox,
        inbox=INBOXES[Role.OPERATOR],
    )
    try:
        yield Eye(link, mailbox)
    finally:
        await network.close()


def footprint(tree):
    """{actor: (KiB of memory, descriptors)} of the supervisor and all actors."""
    pids = processes(tree) | {"supervisor": tree.process.pid}
    return {name: (tree.memory_kib(pid), len([*Path(f"/proc/{pid}/fd").iterdir()])) for name, pid in pids.items()}
