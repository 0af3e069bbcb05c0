"""What the workers of one replica answer, put where it belongs: steps, calls, progress, failures."""

from asyncio import Future
from collections.abc import Callable
from typing import Any, assert_never

import msgspec
import structlog

from actorlm.errors import ExecutorFailed, ProtocolError
from actorlm.execution.faults import remote_error
from actorlm.executors.ranks import Ranks
from actorlm.messages.executor import CallReturned, Inbox, StepDone, StepFailed, WorkerProgress, WorkerReady
from actorlm.runtime.actor import Actor
from actorlm.runtime.events import LinkEvent, LinkRefused, LinkUp, PeerJoined
from actorlm.runtime.mailbox import Mailbox

log = structlog.get_logger()


class Call:
    """A call of a method on all ranks, of which all must answer or one alone. `missing` are those that have not."""

    def __init__(self, future: "Future[Any]", world_size: int, reply_rank: int | None) -> None:
        self.future = future
        self.missing = set(range(world_size)) if reply_rank is None else {reply_rank}
        self._reply_rank = reply_rank
        self._results: dict[int, Any] = {}

    def returned(self, rank: int, result: Any) -> None:
        """One rank's result."""
        self._results[rank] = result
        self.missing.discard(rank)
        if self.missing or self.future.done():
            return
        everyones = [self._results[rank] for rank in sorted(self._results)]
        self.future.set_result(everyones if self._reply_rank is None else self._results[self._reply_rank])


class ResultCollector(Actor[Inbox | LinkEvent]):
    """Receives for a BroadcastExecutor. Workers are known by their names."""

    def __init__(
        self,
        name: str,
        mailbox: Mailbox[Inbox | LinkEvent],
        ranks: Ranks,
        epoch: int,
        on_failure: Callable[[StepFailed], None],
    ) -> None:
        super().__init__(name, mailbox)
        self._ranks = ranks
        self._workers = [rank.name for rank in ranks.all]
        self._epoch = epoch
        self._on_failure = on_failure
        self.ready: set[int] = set()
        self.steps: dict[int, Future[StepDone]] = {}
        self.calls: dict[int, Call] = {}

    def receive(self, sender: str, message: Inbox | LinkEvent) -> None:
        """The collector's table of contents."""
        if isinstance(message, PeerJoined | LinkUp | LinkRefused):
            return
        rank = self._rank(sender, message)
        match message:
            case StepDone():
                self._done(rank, message)
            case StepFailed():
                self._on_failure(message)
            case WorkerReady():
                self._ready(rank, message)
            case CallReturned():
                self._returned(rank, message)
            case WorkerProgress():
                self._ranks.heard(rank, message.last_step, message.doing)
            case _:
                assert_never(message)

    def fail(self, failure: ExecutorFailed) -> None:
        """Nothing more will come."""
        waiting: list[Future[Any]] = [*self.steps.values(), *(call.future for call in self.calls.values())]
        for future in waiting:
            if not future.done():
                future.set_exception(failure)
                future.exception()  # nobody need look: whoever wants to know has been told

    def _rank(self, sender: str, message: Inbox) -> int:
        """The sender's, who speaks only for itself."""
        rank = self._workers.index(sender) if sender in self._workers else -1
        match message:
            case StepDone():
                said = rank
            case StepFailed():
                said = message.fault.rank
            case _:
                said = message.rank
        if rank < 0 or said != rank:
            raise ProtocolError(f"{sender} says {type(message).__name__} of rank {said}; workers are {self._workers}")
        return rank

    def _done(self, rank: int, message: StepDone) -> None:
        self._ranks.heard(rank, message.step, "idle")
        future = self.steps.pop(message.step, None)
        if future is not None and not future.done():
            future.set_result(message)

    def _ready(self, rank: int, message: WorkerReady) -> None:
        if message.epoch == self._epoch and rank not in self.ready:
            self.ready.add(rank)
            self._ranks.introduced(rank, message.host, message.pid)

    def _returned(self, rank: int, message: CallReturned) -> None:
        """An error counts from every rank, also if another one's answer was asked for and has come."""
        call = self.calls.get(message.call)
        error = None if message.fault is None else remote_error(message.fault)
        if call is None or call.future.done():
            if error is not None:
                log.warning("a call failed after it had ended", error=error.message)
            return
        if error is not None:
            call.future.set_exception(error)
        elif rank in call.missing:
            call.returned(rank, msgspec.msgpack.decode(message.result))
