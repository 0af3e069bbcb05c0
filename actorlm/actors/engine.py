"""The EngineCore: one replica's scheduler and the loop that drives its workers.

Owns: the requests of its replica, their KV blocks, the order of steps. Receives Generate and Abort from the balancer;
sends tokens to detokenizers, loads and refusals to the balancer. Must not know: text, HTTP, how many ranks run a step.

As many steps are in flight as the scheduler likes: while one is computed, the next waits at the workers already, and
they need not wait for this process.

Requests go on while the balancer is away; the next one is told what is here. Those whose tokens a detokenizer has not
got, or may not have got, are lost: they end here, and their frontends begin their next attempts.
"""

import asyncio
import contextlib
from asyncio import Future, TimerHandle
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import assert_never

from msgspec import structs

from actorlm.actors.lives import Lives
from actorlm.actors.membership import Membership
from actorlm.actors.text_port import TextPort
from actorlm.errors import ActorlmError, BadRequest, ExecutorFailed, QueueTimeout
from actorlm.executors.base import Executor
from actorlm.logprobs import Scores, pack
from actorlm.messages.actor import CollectMetrics, PeerLost, Stop
from actorlm.messages.balancer import (
    LoadReported,
    ReplicaAnnounced,
    RequestRefused,
    RequestsEnded,
    RequestsLost,
    TextsCutOff,
)
from actorlm.messages.detokenizer import TokensSampled
from actorlm.messages.engine import Abort, Generate, Inbox
from actorlm.messages.executor import StepDone
from actorlm.messages.supervisor import Duty, PeerStuck
from actorlm.runtime.actor import Actor
from actorlm.runtime.errors import NotConnected, NotDelivered, PeerFull
from actorlm.runtime.events import LinkEvent, LinkRefused, LinkUp, PeerJoined
from actorlm.runtime.mailbox import Mailbox
from actorlm.runtime.network import Link
from actorlm.scheduling.core import Core, Step, Witness
from actorlm.scheduling.patience import Patience
from actorlm.scheduling.request import Request
from actorlm.scheduling.scheduler import Sampled, Scheduler
from actorlm.topology import Role
from actorlm.wire import Message, int32, int64, read_int64

LOAD_STEPS = 16
"""Steps from one report of the load to the next."""

DESCRIBE_S = 60.0
"""Time for workers that rest to say what they have read."""


class EngineCore(Actor[Inbox | LinkEvent]):
    """The shell around `scheduling.core.Core` and an executor."""

    def __init__(
        self,
        name: str,
        mailbox: Mailbox[Inbox | LinkEvent],
        *,
        replica: int,
        scheduler: Scheduler,
        vocab_size: int,
        executor: Executor,
        balancer: Link,
        detokenizers: Mapping[int, Link],
        membership: Membership,
        announcement: ReplicaAnnounced,
        queue_timeout_s: float,
        witnesses: Sequence[Witness] = (),
    ) -> None:
        super().__init__(name, mailbox)
        self._replica = replica
        self._core = Core(
            scheduler, vocab_size, (Lives(replica, scheduler, membership.metrics, self._tell_balancer), *witnesses)
        )
        self._scheduler = scheduler
        self._executor = executor
        self._balancer = balancer
        self._ports = {index: TextPort(link) for index, link in detokenizers.items()}
        self._membership = membership
        self._announcement = announcement
        self._loaded = False
        self._early: dict[int, Generate] = {}
        """Requests that wait for a way to their detokenizer."""
        self._announced = 0
        """The session in which the balancer was told of this replica."""
        self._cut_off: tuple[int, ...] = ()
        """The detokenizers that the balancer believes to be out of reach."""
        self._patience = Patience(queue_timeout_s)
        self._looking: TimerHandle | None = None
        self._wake = asyncio.Event()
        self._in_flight: deque[tuple[Step, Future[StepDone]]] = deque()
        self._ended: list[int] = []
        self._received = 0
        self._steps_reported = 0
        executor.on_failure(self._end_with)
        membership.oblige(self._duty)
        membership.count_requests(lambda: (scheduler.running, scheduler.waiting))
        self.spawn(membership.beat(self, self._tick))
        self.spawn(self._serve())

    def receive(self, sender: str, message: Inbox | LinkEvent) -> None:
        """The engine's table of contents."""
        match message:
            case Generate():
                self._received += 1
                self._admit(message)
            case Abort():
                self._abort(read_int64(message.requests))
            case LinkUp():
                self._linked(message.peer)
            case PeerLost():
                pass
            case CollectMetrics():
                self._count()
                self._membership.report(message.token, self)
            case Stop():
                self.stop()
            case LinkRefused():
                raise ActorlmError(message.reason)
            case PeerJoined():
                pass
            case _:
                assert_never(message)

    def _tick(self) -> None:
        self._executor.tick()
        for port in self._ports.values():
            with contextlib.suppress(NotDelivered):
                port.confirm(tokens_sampled(self._replica, [], {}))
        self._report_cut_off()

    async def _serve(self) -> None:
        """Starts the executor, then runs steps for as long as there is work."""
        await self._executor.start(self._membership.phase)
        workers = await self._executor.collective_rpc("describe", timeout_s=DESCRIBE_S)
        for rank, worker in enumerate(workers):
            self._membership.metrics.set("checkpoint_bytes_read", worker["bytes_read"], (str(self._replica), str(rank)))
        self._loaded = True
        self._announce()
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._turn()

    def _duty(self) -> Duty:
        """Steps, for as long as there are requests. While one is computed its time is the executor's to watch."""
        is_computing = bool(self._in_flight) and not self._in_flight[0][1].done()
        pending = self._scheduler.running + self._scheduler.waiting
        return Duty("requests", 0 if is_computing else pending, self._core.steps)

    def _end_with(self, failure: ExecutorFailed) -> None:
        """The replica is its workers: it ends with the first that fails, also when no step is under way."""

        async def end() -> None:
            raise failure

        self.spawn(end())

    def _turn(self) -> None:
        """Takes in what came back. The next steps start before the tokens leave: the workers come first."""
        gains = []
        while self._in_flight and self._in_flight[0][1].done():
            step, running = self._in_flight.popleft()
            gains.append(self._core.take(step, running.result()))
        self._start_steps()
        for gain in gains:
            self._deliver(*gain)
        self._report_ended()
        if not self._in_flight or self._core.steps - self._steps_reported >= LOAD_STEPS:
            self._report_load()

    def _start_steps(self) -> None:
        """Gives the workers as many steps as may be in flight."""
        while (step := self._core.next_step()) is not None:
            running = self._executor.execute_model(step.message)
            running.add_done_callback(self._step_returned)
            self._in_flight.append((step, running))

    def _step_returned(self, running: "Future[StepDone]") -> None:
        if not running.cancelled():
            running.exception()  # of several that fail the oldest is raised; the others are no surprise
        self._wake.set()

    def _admit(self, message: Generate) -> None:
        try:
            if message.detokenizer not in self._ports:
                raise BadRequest(f"detokenizer {message.detokenizer} is none of the {len(self._ports)}")
            if not self._ports[message.detokenizer].is_open:
                self._early[message.request] = message
                return
            request = self._core.admit(message)
        except ActorlmError as error:
            self._refuse(message.request, message.attempt, error)
        else:
            self._patience.begin(request, asyncio.get_running_loop().time())
            self._look_later()
            self._wake.set()

    def _refuse(self, request: int, attempt: int, error: ActorlmError) -> None:
        self._tell_balancer(RequestRefused(request, attempt, error.status, error.code, error.message, error.param))

    def _look_later(self) -> None:
        """Looks for requests that have waited too long when that may be so first."""
        if self._looking is None and self._patience.ends_at is not None:
            self._looking = asyncio.get_running_loop().call_at(self._patience.ends_at, self._end_overdue)

    def _end_overdue(self) -> None:
        self._looking = None
        for request in self._patience.overdue(asyncio.get_running_loop().time()):
            self._core.abort([request.id])
            error = QueueTimeout(
                f"the request has waited {self._patience.seconds:g} s, as long as it may; try again later"
            )
            self._refuse(request.id, request.attempt, error)
        self._look_later()

    def _abort(self, requests: Iterable[int]) -> None:
        requests = list(requests)
        self._ended += [request for request in requests if self._early.pop(request, None)]
        self._ended += self._core.abort(requests)
        self._wake.set()

    def _deliver(self, sampled: list[Sampled], scores: Mapping[Request, Scores]) -> None:
        """One message to each detokenizer that has tokens of this step, or log-probabilities of prompts."""
        rows: dict[int, list[Sampled]] = defaultdict(list)
        for sample in sampled:
            rows[sample.request.detokenizer].append(sample)
            if sample.finish:
                self._ended.append(sample.request.id)
                self._ports[sample.request.detokenizer].ended.append((sample.request.id, sample.request.attempt))
        for detokenizer, samples in rows.items():
            self._push(detokenizer, tokens_sampled(self._replica, samples, scores))

    def _push(self, detokenizer: int, message: TokensSampled) -> None:
        """Never waits for a detokenizer: one that is full is stuck, one that is gone has lost its requests."""
        try:
            self._ports[detokenizer].push(message)
        except PeerFull:
            self._membership.say(PeerStuck(self._ports[detokenizer].peer))
        except NotConnected:
            self._lose_texts(detokenizer)

    def _linked(self, peer: str) -> None:
        if peer == Role.SUPERVISOR:
            self._membership.linked()
        for index, port in self._ports.items():
            if port.peer == peer:
                self._lose_texts(index)
                port.open()
                self._admit_early(index)
        self._announce()

    def _lose_texts(self, detokenizer: int, *early: Generate) -> None:
        """What was pushed to a detokenizer may not have come: its requests end here, to be taken up again."""
        port, requests = self._ports[detokenizer], self._scheduler.requests
        lost = [(request.id, request.attempt) for request in requests if request.detokenizer == detokenizer]
        lost += [(one.request, one.attempt) for one in early]
        self._abort(request for request, _ in lost)
        self._report_ended()
        if lost := [*port.ended, *lost]:
            port.ended.clear()
            self._tell_balancer(RequestsLost(self._replica, *_columns(lost), port.peer))

    def _report_cut_off(self) -> None:
        """Has requests go elsewhere whose detokenizer is out of reach; where there is no elsewhere they come again."""
        cut_off = tuple(index for index, port in self._ports.items() if not port.is_open)
        if cut_off == self._cut_off or not self._announced:
            return
        new, self._cut_off = set(cut_off) - set(self._cut_off), cut_off
        self._tell_balancer(TextsCutOff(self._replica, cut_off))
        for detokenizer in new:
            self._lose_texts(detokenizer, *(one for one in self._early.values() if one.detokenizer == detokenizer))

    def _admit_early(self, detokenizer: int) -> None:
        for message in [one for one in self._early.values() if one.detokenizer == detokenizer]:
            del self._early[message.request]
            self._admit(message)

    def _announce(self) -> None:
        """Says that this replica takes requests, once it can also deliver some, and what it has, once in a session.

        Requests whose detokenizer is not there yet wait for it; it may be on a host that is missing.
        """
        session = self._balancer.welcome.session
        if not self._loaded or not self._balancer.is_up or not any(port.was_opened for port in self._ports.values()):
            return
        if session != self._announced:
            self._announced, self._received, self._cut_off = session, 0, ()
            self._tell_balancer(self._inventory())
            self._report_load()
        self._membership.ready(f"{self._announcement.kv_capacity_tokens}")

    def _inventory(self) -> ReplicaAnnounced:
        early, requests = self._early.values(), self._scheduler.requests
        held = [*((one.request, one.attempt) for one in early), *((one.id, one.attempt) for one in requests)]
        suspects = [*(one.request for one in early if one.suspect), *(one.id for one in requests if one.is_suspect)]
        numbers, attempts = _columns(held)
        return structs.replace(self._announcement, requests=numbers, attempts=attempts, suspects=int64(suspects))

    def _report_ended(self) -> None:
        if self._ended:
            ended, self._ended = self._ended, []
            self._tell_balancer(RequestsEnded(self._replica, int64(ended)))

    def _report_load(self) -> None:
        self._steps_reported = self._core.steps
        self._tell_balancer(LoadReported(self._replica, self._received, *self._scheduler.load))

    def _tell_balancer(self, message: Message) -> None:
        """A balancer that is gone need not know: the next one is told what is here."""
        try:
            self._balancer.send(message)
        except NotConnected:
            return
        except PeerFull:
            self._membership.say(PeerStuck(Role.BALANCER))

    def _count(self) -> None:
        scheduler, metrics, labels = self._scheduler, self._membership.metrics, (str(self._replica),)
        for metric, value in (
            ("num_requests_running", scheduler.running),
            ("num_requests_waiting", scheduler.waiting),
            ("num_waiting_tokens", scheduler.waiting_tokens),
            ("kv_cache_usage_perc", scheduler.kv_used_tokens / self._announcement.kv_capacity_tokens),
            ("prefix_cache_queries", scheduler.prefix_queries),
            ("prefix_cache_hits", scheduler.prefix_hits),
            ("num_preemptions", scheduler.num_preemptions),
            ("engine_steps", self._core.steps),
        ):
            metrics.set(metric, value, labels)


def _columns(attempts: Collection[tuple[int, int]]) -> tuple[bytes, bytes]:
    """Requests and their attempts, as messages have them."""
    return int64(request for request, _ in attempts), int32(attempt for _, attempt in attempts)


def tokens_sampled(replica: int, samples: list[Sampled], scores: Mapping[Request, Scores]) -> TokensSampled:
    """What one step gave the requests of one detokenizer."""
    return TokensSampled(
        replica=replica,
        requests=int64(sample.request.id for sample in samples),
        attempts=int32(sample.request.attempt for sample in samples),
        counts=int32(sample.token is not None for sample in samples),
        tokens=int32(sample.token for sample in samples if sample.token is not None),
        finishes=bytes(sample.finish for sample in samples),
        cached=int32(sample.request.num_cached for sample in samples),
        logprobs=pack([scores.get(sample.request) for sample in samples]) if scores else None,
    )
