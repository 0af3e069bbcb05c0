"""The end of the Ray executor inside a Ray cluster: it starts one process of ours and tells how that one ended.

Only strings cross Ray, in both directions. Knows nothing of Ray itself; Ray makes an actor of it.
"""

import os
import socket
import threading

import msgspec

from actorlm.runtime.child import ChildProcess
from actorlm.runtime.identity import machine


class Started(msgspec.Struct, frozen=True):
    """Where a process has been started; `pid` is 0 if it has not, because this is another machine than it was for."""

    host: str
    pid: int


class Starter:
    """Starts one process, once."""

    def start(self, wanted_machine: str, name: str, specification: str, variables: str) -> str:
        """Starts an actor's process as a supervisor does; returns `Started` as JSON.

        Its environment is this node's, and `variables`, a JSON object, on top.
        """
        # the process dies with the thread that has started it, so this must be one that lasts
        assert threading.current_thread() is threading.main_thread(), "Ray runs methods on the main thread"
        if machine() != wanted_machine:
            return msgspec.json.encode(Started(socket.gethostname(), 0)).decode()
        environment = os.environ | msgspec.json.decode(variables, type=dict[str, str])
        self._child = ChildProcess.spawn(["actorlm.process", name], specification.encode(), environment, [])
        return msgspec.json.encode(Started(socket.gethostname(), self._child.pid)).decode()

    def wait(self) -> str:
        """Waits for the end of the process and says how it ended."""
        return self._child.reap(lambda _: None)
