"""The spans of a frontend's choices, and below each those of the hops that worked for it.

Only frontends export spans. The hops behind them keep times for requests that are `traced`, and report them once, when
they have ended (HopEnded), as durations since the request reached them: clocks of other hosts do not matter. Here they
are put where the frontend sent the request off. A report may come after its choice has ended; what never comes is
missing in the trace.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from actorlm.actors.generation import Choice
from actorlm.messages.balancer import HopEnded
from actorlm.tracing import Traces

MAX_WAITING = 4096
"""Choices that have ended and whose hops may yet report."""
TIMES = {
    "queue": "gen_ai.latency.time_in_queue",
    "prefill": "gen_ai.latency.time_in_model_prefill",
    "decode": "gen_ai.latency.time_in_model_decode",
}


class NoSpans:
    """Where no traces are exported."""

    def begin(self, choice: Choice) -> None:
        """A choice was accepted."""

    def traced(self, choice: Choice) -> bool:
        """Whether those behind are to report their times."""
        return False

    def sent(self, choice: Choice) -> None:
        """An attempt is on its way to a replica."""

    def first_token(self, choice: Choice, seconds: float) -> None:
        """The first text has come."""

    def end(self, choice: Choice, reason: str) -> None:
        """A choice has ended."""

    def hop(self, message: HopEnded) -> None:
        """A hop reports."""


@dataclass(slots=True)
class _Traced:
    span: Any
    began_ns: int
    sent_ns: dict[int, int] = field(default_factory=dict)
    """By attempt."""


class Spans(NoSpans):
    """The choices that are traced: those that go on, and the last ones that have ended."""

    def __init__(self, traces: Traces, model: str, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._traces = traces
        self._model = model
        self._clock_ns = clock_ns
        self._going_on: dict[int, _Traced] = {}
        self._ended: dict[int, _Traced] = {}

    def begin(self, choice: Choice) -> None:
        """A span below the one around the caller's task."""
        sampling = choice.submission.sampling
        span = self._traces.begin(
            "llm_request",
            attributes={
                "gen_ai.request.id": choice.trace_id,
                "gen_ai.response.model": self._model,
                "gen_ai.request.max_tokens": sampling.max_tokens,
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.top_p": sampling.top_p,
                "gen_ai.usage.prompt_tokens": len(choice.submission.prompt_ids),
                "actorlm.choice": choice.index,
            },
        )
        if span.is_recording():
            self._going_on[choice.id] = _Traced(span, self._clock_ns())

    def traced(self, choice: Choice) -> bool:
        """See NoSpans."""
        return choice.id in self._going_on

    def sent(self, choice: Choice) -> None:
        """See NoSpans."""
        traced = self._going_on.get(choice.id)
        if traced is not None:
            traced.sent_ns[choice.attempt] = self._clock_ns()
            if choice.attempt:
                traced.span.add_event("resumed", {"actorlm.attempt": choice.attempt})

    def first_token(self, choice: Choice, seconds: float) -> None:
        """See NoSpans."""
        traced = self._going_on.get(choice.id)
        if traced is not None:
            traced.span.add_event("first token")
            traced.span.set_attribute("gen_ai.latency.time_to_first_token", seconds)

    def end(self, choice: Choice, reason: str) -> None:
        """See NoSpans."""
        traced = self._going_on.pop(choice.id, None)
        if traced is None:
            return
        now = self._clock_ns()
        traced.span.set_attributes(
            {
                "gen_ai.usage.completion_tokens": len(choice.ids),
                "gen_ai.latency.e2e": time.monotonic() - choice.created_at,
                "gen_ai.response.finish_reasons": [reason],
            }
        )
        if reason == "error":
            self._traces.fail(traced.span, "ended with an error")
        traced.span.end(now)
        self._ended[choice.id] = traced
        if len(self._ended) > MAX_WAITING:
            del self._ended[next(iter(self._ended))]

    def hop(self, message: HopEnded) -> None:
        """One span for the hop, and one for each of its parts if it has several."""
        traced = self._going_on.get(message.request) or self._ended.get(message.request)
        sent = None if traced is None else traced.sent_ns.get(message.attempt, traced.began_ns)
        if traced is None or sent is None or not message.parts:
            return
        end = max(part.end_ns for part in message.parts)
        attributes = {"actorlm.actor": message.actor, "actorlm.attempt": message.attempt, **dict(message.counts)}
        attributes |= {TIMES[p.name]: (p.end_ns - p.begin_ns) / 1e9 for p in message.parts if p.name in TIMES}
        hop = self._traces.begin(message.hop, parent=traced.span, start_ns=sent, attributes=attributes)
        for part in message.parts if len(message.parts) > 1 else ():
            span = self._traces.begin(part.name, parent=hop, start_ns=sent + part.begin_ns)
            span.end(sent + part.end_ns)
        hop.end(sent + end)
