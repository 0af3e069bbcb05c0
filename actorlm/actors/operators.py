"""The operators of a supervisor: who they are, what they are told, and the table of actors that they see."""

import asyncio
import contextlib
import time

from actorlm.actors.peers import Peers
from actorlm.actors.processes import NEVER_HEARD, Processes
from actorlm.errors import ProtocolError
from actorlm.messages.actor import TreeState
from actorlm.messages.operator import ActorDescribed, OrderEnded, OrderProgressed, TreeDescribed
from actorlm.runtime.children import Child
from actorlm.runtime.supervision import Supervision
from actorlm.wire import Message

UNTIL_READ_S = 2.0


class Operators:
    """Each command is a peer of its own, whose end nobody announces: it is forgotten with its last answer."""

    def __init__(self, supervision: Supervision, processes: Processes, peers: Peers, *, model: str, url: str) -> None:
        self._supervision = supervision
        self._processes = processes
        self._peers = peers
        self._model = model
        self._url = url
        self._here: set[str] = set()
        self._unread: set[str] = set()
        """Who has been told how the tree ended and has not said that it was read."""
        self._read = asyncio.Event()

    def joined(self, operator: str) -> None:
        """An operator has a session."""
        self._here = {name for name in self._here if self._peers.has(name)} | {operator}

    def check(self, sender: str, message: Message) -> None:
        """Raises ProtocolError unless an operator says this."""
        if sender not in self._here:
            raise ProtocolError(f"{sender}, which is no operator, says {type(message).__name__}")

    def describe(self, operator: str, state: TreeState) -> None:
        """Answers with the table of actors."""
        rows = tuple(map(self._describe, self._supervision.children.values()))
        self._say_last(operator, TreeDescribed(state, self._model, self._url, rows))

    def tell(self, operator: str, text: str) -> None:
        """How far an order is. The order goes on though its operator may have left."""
        self._peers.say(operator, OrderProgressed(text))

    def end(self, operator: str, status: int, text: str) -> None:
        """The end of an order."""
        self._say_last(operator, OrderEnded(status, text))

    def end_with_tree(self, operator: str, status: int, text: str) -> None:
        """The end of an order with the end of the tree. What is on its way when the supervisor ends may be lost."""
        if self._peers.say(operator, OrderEnded(status, text)):
            self._unread.add(operator)

    def has_read(self, operator: str) -> None:
        """An operator has read its last answer."""
        self._unread.discard(operator)
        if not self._unread:
            self._read.set()

    async def until_read(self) -> None:
        """Waits for those who have been told of the tree's end, but not for long."""
        if self._unread:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._read.wait(), UNTIL_READ_S)

    def _say_last(self, operator: str, message: Message) -> None:
        self._peers.say(operator, message)
        self._peers.forget(operator)
        self._here.discard(operator)

    def _describe(self, child: Child) -> ActorDescribed:
        running = self._processes.get(child.name)
        heartbeat = running.heartbeat if running else NEVER_HEARD
        return ActorDescribed(
            name=child.name,
            role=child.role,
            host=child.host,
            ranks=child.ranks,
            pid=running.process.pid if running else 0,
            state=child.state,
            restarts=child.restarts,
            mailbox_depth=heartbeat.mailbox_depth,
            running=heartbeat.running,
            waiting=heartbeat.waiting,
            memory_mib=running.memory_mib if running else 0,
            uptime_s=time.monotonic() - running.started_at if running else 0.0,
            last_death=child.last_death,
        )
