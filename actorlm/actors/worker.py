"""The Worker process: one rank behind the broadcast executor.

Owns: this rank's weights, KV cache and the state of its slots. Steps arrive by broadcast and are computed on one thread
with blocking receives; the event loop does control only. Must not know: requests, schedulers, other ranks' results.
"""

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, assert_never

import msgspec

from actorlm.actors.membership import Membership
from actorlm.errors import ActorlmError, PeerMissing
from actorlm.execution.faults import fault_of
from actorlm.execution.worker import Worker
from actorlm.messages.actor import CollectMetrics, Control, PeerLost, Stop
from actorlm.messages.executor import CallReturned, Fault, StepFailed, WorkerProgress, WorkerReady
from actorlm.messages.worker import CallMethod, RunStep, StopWorker, Sync
from actorlm.runtime.actor import Actor
from actorlm.runtime.broadcast import Subscriber
from actorlm.runtime.errors import NotDelivered
from actorlm.runtime.events import LinkEvent, LinkRefused, LinkUp, PeerJoined
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.network import Link
from actorlm.topology import Role
from actorlm.wire import Message

FAREWELL_S = 0.2
"""Time that a last StepFailed gets to leave before this process ends."""
PEER_FAREWELL_S = 1.5
"""The same if a peer was missing: the supervisor, who ends all of them for that peer's death, comes before it."""


class WorkerActor(Actor[Control | LinkEvent]):
    """The control side of a worker process, and the thread that computes."""

    def __init__(
        self,
        name: str,
        mailbox: Mailbox[Control | LinkEvent],
        *,
        rank: int,
        build: Callable[[], Worker],
        engine: Link,
        subscribe: Callable[[Link], Subscriber[Any]],
        membership: Membership,
    ) -> None:
        super().__init__(name, mailbox)
        self._rank = rank
        self._build = build
        self._engine = engine
        self._subscribe = subscribe
        self._membership = membership
        self._worker: Worker | None = None
        self._reported = WorkerProgress(rank, -1, "idle")
        self._computing: asyncio.Future[None] | None = None
        self.spawn(membership.beat(self, self._report_progress, self._doing))

    def receive(self, sender: str, message: Control | LinkEvent) -> None:
        """The worker's table of contents."""
        match message:
            case LinkUp():
                self._linked(message.peer)
            case CollectMetrics():
                self._membership.report(message.token, self)
            case Stop():
                self.stop()
            case LinkRefused():
                raise ActorlmError(message.reason)
            case PeerLost() | PeerJoined():
                pass
            case _:
                assert_never(message)

    def _linked(self, peer: str) -> None:
        if peer == Role.SUPERVISOR:
            self._membership.linked()
        elif self._computing is None:
            self.spawn(self._compute())

    async def _compute(self) -> None:
        """Runs the computing thread; its failure is this process's."""
        loop = asyncio.get_running_loop()
        self._computing = loop.create_future()
        thread = threading.Thread(target=self._run_thread, args=(loop, self._computing), name="steps", daemon=True)
        thread.start()
        try:
            await self._computing
        except Exception as error:
            await asyncio.sleep(PEER_FAREWELL_S if isinstance(error, PeerMissing) else FAREWELL_S)
            raise
        self.stop()

    def _run_thread(self, loop: asyncio.AbstractEventLoop, outcome: "asyncio.Future[None]") -> None:
        try:
            self._load(loop)
            self._serve(loop)
        except Exception as error:  # noqa: BLE001 - reported to the engine and to the event loop
            loop.call_soon_threadsafe(self._answer, StepFailed(self._fault(error), isinstance(error, PeerMissing)))
            loop.call_soon_threadsafe(_settle, outcome, error)
        else:
            loop.call_soon_threadsafe(_settle, outcome, None)

    def _load(self, loop: asyncio.AbstractEventLoop) -> None:
        def progress(done: int, total: int) -> None:
            loop.call_soon_threadsafe(self._membership.phase, "load weights", done, total)

        loop.call_soon_threadsafe(self._membership.phase, "import")
        self._worker = self._build()
        self._worker.load(progress)
        loop.call_soon_threadsafe(self._membership.ready)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        subscriber = self._subscribe(self._engine)
        try:
            while not isinstance(message := subscriber.receive(), StopWorker):
                answer = self._act(message)
                if answer is not None:
                    loop.call_soon_threadsafe(self._answer, answer)
        finally:
            subscriber.close()

    def _act(self, message: Any) -> Message | None:
        assert self._worker is not None, "loaded before it serves"
        match message:
            case RunStep():
                return self._worker.execute(message)
            case Sync():
                return WorkerReady(self._rank, message.epoch, socket.gethostname(), os.getpid())
            case CallMethod():
                return self._call(self._worker, message)
            case _:
                raise ActorlmError(f"{type(message).__name__} is no message to a worker")

    def _call(self, worker: Worker, message: CallMethod) -> CallReturned | None:
        try:
            result = worker.call(message.method, msgspec.msgpack.decode(message.args))
            answer = msgspec.msgpack.encode(result)
        except Exception as error:  # noqa: BLE001 - the caller's to handle
            return CallReturned(message.call, self._rank, b"", self._fault(error, f"call of {message.method}"))
        if message.reply_rank not in (None, self._rank):
            return None
        return CallReturned(message.call, self._rank, answer)

    def _fault(self, error: Exception, doing: str = "") -> Fault:
        return fault_of(error, rank=self._rank, doing=doing or self._doing())

    def _doing(self) -> str:
        return self._worker.doing if self._worker else "starting"

    def _report_progress(self) -> None:
        """Unless it has not changed: a worker that rests does not wake its engine."""
        if self._worker is None:
            return
        progress = WorkerProgress(self._rank, self._worker.last_step, self._worker.doing)
        if progress != self._reported:
            self._reported = progress
            self._answer(progress)

    def _answer(self, message: Message) -> None:
        """An engine that is gone takes this worker along: they restart together."""
        try:
            self._engine.pusher("results").send(message)
        except NotDelivered:
            return


def _settle(outcome: "asyncio.Future[None]", error: Exception | None) -> None:
    """Ends the thread's future, unless the actor has stopped waiting for it."""
    if outcome.done():
        return
    if error is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(error)
