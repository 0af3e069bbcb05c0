"""Takes what arrived at a socket, in turns of the event loop: a budget at a time, nothing while the mailbox is full."""

import asyncio
from collections.abc import Callable

from actorlm.errors import ProtocolError
from actorlm.runtime.errors import NotDelivered
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.tally import Tally

BUDGET = 256


class Reader:
    """Calls `take` until it returns False; it returns True for each item that it took from the socket.

    `take` raises ProtocolError or NotDelivered for an item that is to be dropped. `watch(False)` says that the socket
    need not announce items, since the mailbox has no room for them; `watch(True)` that it must again.
    """

    def __init__(
        self, mailbox: "Mailbox[object]", tally: Tally, take: Callable[[], bool], watch: Callable[[bool], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._mailbox = mailbox
        self._tally = tally
        self._take = take
        self._watch = watch
        self._scheduled = False
        self._paused = False
        self._closed = False
        mailbox.on_room(self._resume)

    def schedule(self) -> None:
        """Reads in the loop's next turn."""
        if not self._scheduled and not self._paused and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self.turn)

    def close(self) -> None:
        """Takes nothing from now on."""
        self._closed = True

    def _resume(self) -> None:
        if self._paused and not self._closed:
            self._paused = False
            self._watch(True)
            self.schedule()

    def turn(self) -> None:
        """Reads now."""
        self._scheduled = False
        for _ in range(BUDGET):
            if self._closed:
                return
            if self._mailbox.pauses_ports:
                self._paused = True
                self._watch(False)
                return
            if not self._take_one():
                return
        self.schedule()

    def _take_one(self) -> bool:
        try:
            return self._take()
        except (ProtocolError, NotDelivered) as error:
            self._tally.drop(error)
            return True
        except Exception:
            self.schedule()  # our own error is the loop's to report; what else arrived is still read
            raise
