"""A process of another host, seen from the supervisor that leads."""

import asyncio
from collections.abc import Callable

from actorlm.messages.host import SignalProcess
from actorlm.wire import Message


class RemoteProcess:
    """Implements `runtime.child.SupervisedProcess`. `order` sends to the host's agent; `pid` is 0 until that answers.

    The process has ended when its agent says so, or with its host.
    """

    def __init__(self, name: str, incarnation: int, order: Callable[[Message], None]) -> None:
        self.pid = 0
        self.name = name
        self.incarnation = incarnation
        self._order = order
        self._how = ""
        self._has_ended = False
        self._on_exit: Callable[[], None] | None = None

    def watch(self, add_reader: Callable[[int, Callable[[], None]], None], on_exit: Callable[[], None]) -> None:
        """Has the event loop call `on_exit` when the process has ended."""
        self._on_exit = on_exit
        self._tell()

    def reap(self, remove_reader: Callable[[int], object]) -> str:
        """Says how it ended."""
        return self._how

    def signal(self, number: int) -> None:
        """Sends a signal; a process that has ended already does not mind."""
        self._order(SignalProcess(self.name, self.incarnation, number))

    def ended(self, how: str) -> None:
        """It has ended."""
        self._how, self._has_ended = how, True
        self._tell()

    def _tell(self) -> None:
        if self._has_ended and self._on_exit is not None:
            asyncio.get_running_loop().call_soon(self._on_exit)
            self._on_exit = None
