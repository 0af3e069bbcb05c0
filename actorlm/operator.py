"""What an operator's command asks of running trees, over their control sockets."""

import asyncio
import os
from pathlib import Path
from typing import Any

from actorlm.instance import running, supervisor_address
from actorlm.messages.catalog import INBOXES, protocol
from actorlm.messages.operator import TreeDescribed
from actorlm.messages.supervisor import DescribeTree
from actorlm.runtime.events import LinkRefused, LinkUp
from actorlm.runtime.identity import this_process
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.zeromq import ZeroMQNetwork
from actorlm.topology import Role

PATIENCE_S = 3.0


def describe_running() -> list[tuple[Path, TreeDescribed | str]]:
    """Every running tree of this user: its run directory, and its description or why there is none."""
    return asyncio.run(_describe_all(running()))


async def _describe_all(directories: list[Path]) -> list[tuple[Path, TreeDescribed | str]]:
    described = await asyncio.gather(*map(_describe, directories))
    return list(zip(directories, described, strict=True))


async def _describe(directory: Path) -> TreeDescribed | str:
    try:
        return await asyncio.wait_for(_ask(directory), PATIENCE_S)
    except TimeoutError:
        return f"no answer within {PATIENCE_S:g} s"


async def _ask(directory: Path) -> TreeDescribed | str:
    network = ZeroMQNetwork(protocol())
    mailbox: Mailbox[Any] = Mailbox(Role.OPERATOR, 64, Overflow.PAUSE)
    link = network.connect(
        supervisor_address(directory),
        peer=Role.SUPERVISOR,
        identity=this_process(Role.OPERATOR, f"{Role.OPERATOR}-{os.getpid()}"),
        mailbox=mailbox,
        inbox=INBOXES[Role.OPERATOR],
    )
    try:
        while True:
            for _, message in await mailbox.drain():
                if isinstance(message, LinkUp):
                    link.send(DescribeTree())
                elif isinstance(message, TreeDescribed):
                    return message
                elif isinstance(message, LinkRefused):
                    return message.reason
    finally:
        await network.close()
