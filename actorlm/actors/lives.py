"""What a replica's requests have lived through: when each came, entered a slot, had its first token, and ended.

A witness of the core. From it come the metrics of these times, and the lines of the log about single requests. Nothing
is done for a token that is neither a request's first nor its last.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from actorlm.errors import ActorlmError
from actorlm.messages.balancer import HopEnded, HopPart
from actorlm.messages.engine import Generate
from actorlm.messages.executor import StepDone
from actorlm.metrics import Metrics
from actorlm.names import engine_of
from actorlm.scheduling.core import Gain, Step
from actorlm.scheduling.plan import StepPlan
from actorlm.scheduling.request import Request
from actorlm.scheduling.scheduler import Scheduler

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Life:
    """One attempt of a request. Times are in seconds of one clock; None is "not yet"."""

    message: Generate
    arrived: float
    request: Request | None = None
    entered: float | None = None
    first_token: float | None = None
    preemptions: int = 0


class Lives:
    """All requests of the replica that have not ended."""

    def __init__(
        self,
        replica: int,
        scheduler: Scheduler,
        metrics: Metrics,
        report: Callable[[HopEnded], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._actor = engine_of(replica)
        self._report = report
        self._labels = (str(replica),)
        self._scheduler = scheduler
        self._metrics = metrics
        self._clock = clock
        self._lives: dict[int, Life] = {}
        self._tokenless: set[int] = set()
        self._preemptions = 0

    def admitted(self, message: Generate, refusal: ActorlmError | None) -> None:
        """See `Witness`."""
        if refusal is not None:
            log.debug("refused", request_id=message.trace_id, request=message.request, error=refusal.message)
            return
        self._lives[message.request] = Life(message, self._clock())
        self._tokenless.add(message.request)
        log.debug("admitted", request_id=message.trace_id, request=message.request, attempt=message.attempt)

    def planned(self, plan: StepPlan | None) -> None:
        """See `Witness`."""
        if self._scheduler.num_preemptions != self._preemptions:
            self._preemptions = self._scheduler.num_preemptions
            self._tell_of_preempted()
        if plan is not None and plan.entered:
            now = self._clock()
            for request in plan.entered:
                self._enter(request, plan.step, now)

    def took(self, step: Step, done: StepDone, gain: Gain) -> None:
        """See `Witness`."""
        self._metrics.observe("iteration_tokens_total", sum(step.plan.counts), labels=self._labels)
        if self._tokenless:
            now = self._clock()
            for sampled in gain.sampled:
                if sampled.request.id in self._tokenless and sampled.token is not None:
                    self._begin(sampled.request, now)
        if len(self._scheduler.requests) == len(self._lives):
            return  # nobody has ended
        for sampled in gain.sampled:
            if sampled.finish:
                self._end(sampled.request.id, sampled.finish.name.lower())

    def aborted(self, requests: Sequence[int], ended: Sequence[int]) -> None:
        """See `Witness`."""
        for request in ended:
            self._end(request, "abort")

    def _enter(self, request: Request, step: int, now: float) -> None:
        life = self._lives[request.id]
        life.request = request
        again = life.entered is not None
        if life.entered is None:
            life.entered = now
            self._observe("request_queue_time_seconds", now - life.arrived)
        log.debug(
            "entered slot", request_id=request.trace_id, request=request.id, slot=request.slot, step=step,
            cached=request.num_cached, again=again,
        )  # fmt: skip

    def _begin(self, request: Request, now: float) -> None:
        self._tokenless.remove(request.id)
        life = self._lives.get(request.id)
        if life is None or life.entered is None:
            return
        life.first_token = now
        self._observe("request_prefill_time_seconds", now - life.entered)
        self._observe("request_prefill_kv_computed_tokens", request.prompt_length - request.num_cached)
        log.debug("first token", request_id=request.trace_id, request=request.id, seconds=now - life.arrived)

    def _end(self, request: int, reason: str) -> None:
        life = self._lives.pop(request)
        self._tokenless.discard(request)
        now = self._clock()
        if life.entered is not None and life.first_token is not None:
            self._observe("request_decode_time_seconds", now - life.first_token)
            self._observe("request_inference_time_seconds", now - life.entered)
        generated, preemptions = (0, 0) if life.request is None else _counts(life.request)
        self._observe("request_num_preemptions", preemptions)
        log.debug(
            "left", request_id=life.message.trace_id, request=request, reason=reason, tokens=generated,
            preemptions=preemptions, seconds=now - life.arrived,
        )  # fmt: skip
        if life.message.traced:
            counts = {"actorlm.tokens": generated, "actorlm.preemptions": preemptions}
            self._report(_hop(self._actor, life, now, counts))

    def _tell_of_preempted(self) -> None:
        for life in self._lives.values():
            if life.request is not None and life.request.num_preemptions != life.preemptions:
                life.preemptions = life.request.num_preemptions
                log.debug("preempted", request_id=life.message.trace_id, request=life.request.id)

    def _observe(self, metric: str, value: float) -> None:
        self._metrics.observe(metric, value, labels=self._labels)


def _hop(actor: str, life: Life, now: float, counts: dict[str, int]) -> HopEnded:
    """The parts of a life, as far as it came."""
    times = [life.arrived, life.entered, life.first_token]
    begins = [one for one in times if one is not None]
    parts = zip(("queue", "prefill", "decode"), begins, [*begins[1:], now], strict=False)
    return HopEnded(
        life.message.request,
        life.message.attempt,
        "engine",
        actor,
        tuple(HopPart(name, _ns(begin - life.arrived), _ns(end - life.arrived)) for name, begin, end in parts),
        tuple(counts.items()),
    )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _counts(request: Request) -> tuple[int, int]:
    return request.num_generated, request.num_preemptions
