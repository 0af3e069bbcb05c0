"""An actor: a mailbox, one synchronous `receive`, and the tasks that belong to it.

A message that its sender must not send (ProtocolError) is dropped and counted, like a bad frame; any other failure is
the actor's own, and ends it.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from actorlm.errors import ProtocolError
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.tally import Tally

M = TypeVar("M")


class Actor(Generic[M]):
    """Subclasses implement `receive` with one `match`. Runs once."""

    def __init__(self, name: str, mailbox: Mailbox[M]) -> None:
        self.name = name
        self.mailbox = mailbox
        self.processed = 0
        """Messages received so far: the actor's progress."""
        self.tally = Tally(f"mailbox {name}")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ending = asyncio.Event()
        self._failure: BaseException | None = None

    def receive(self, sender: str, message: M) -> None:
        """Reacts to one message. Raises ProtocolError, having changed nothing, for one that is to be dropped."""
        raise NotImplementedError

    def after_batch(self) -> None:
        """Called once after each batch of messages, for what is said once per batch."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs `work` beside the actor. It is cancelled when the actor ends; its failure ends the actor."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def stop(self) -> None:
        """Ends `run` without an error. Of a batch in progress, later messages are left, and `after_batch` is called."""
        self._ending.set()

    async def run(self) -> None:
        """Receives messages until `stop`. Raises what `receive`, `after_batch` or a spawned task raised first."""
        self.spawn(self._read_mailbox())
        try:
            await self._ending.wait()
        finally:
            await self._end_tasks()
        if self._failure is not None:
            raise self._failure

    async def _read_mailbox(self) -> None:
        while not self._ending.is_set():
            for sender, message in await self.mailbox.drain():
                if self._ending.is_set():
                    break
                self._take(sender, message)
            self.after_batch()
            await asyncio.sleep(0)  # sockets and timers get their turn, however full the mailbox is

    def _take(self, sender: str, message: M) -> None:
        try:
            self.receive(sender, message)
        except ProtocolError as error:
            self.tally.drop(error)
        self.processed += 1

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self._failure = self._failure or failure
            self._ending.set()

    async def _end_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
