"""What operators ask of a supervisor, and its answers."""

import time

from actorlm.actors.peers import Peers
from actorlm.actors.processes import Processes
from actorlm.messages.actor import TreeState
from actorlm.messages.operator import ActorDescribed, TreeDescribed
from actorlm.runtime.children import Child
from actorlm.runtime.supervision import Supervision


class Operators:
    """Each command is a peer of its own, whose end nobody announces: it is forgotten with its last answer."""

    def __init__(self, supervision: Supervision, processes: Processes, peers: Peers, *, model: str, url: str) -> None:
        self._supervision = supervision
        self._processes = processes
        self._peers = peers
        self._model = model
        self._url = url

    def describe(self, operator: str, state: TreeState) -> None:
        """Answers with the table of actors."""
        rows = tuple(map(self._describe, self._supervision.children.values()))
        self._peers.say(operator, TreeDescribed(state, self._model, self._url, rows))
        if operator not in self._supervision.children:
            self._peers.forget(operator)

    def _describe(self, child: Child) -> ActorDescribed:
        running = self._processes.get(child.name)
        return ActorDescribed(
            name=child.name,
            role=child.role,
            pid=running.process.pid if running else 0,
            state=child.state,
            restarts=child.restarts,
            mailbox_depth=running.heartbeat.mailbox_depth if running else 0,
            memory_mib=running.memory_mib if running else 0,
            uptime_s=time.monotonic() - running.started_at if running else 0.0,
        )
