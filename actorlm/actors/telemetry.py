"""What a frontend tells of its choices as they go: metrics, spans, lines of its log."""

from collections.abc import Sequence

import structlog

from actorlm.actors.generation import Choice
from actorlm.actors.spans import NoSpans
from actorlm.errors import Overloaded
from actorlm.metrics import Metrics

log = structlog.get_logger(__name__)


class Telemetry:
    """Changes nothing of a choice but the times of its tokens."""

    def __init__(self, metrics: Metrics, spans: NoSpans) -> None:
        self._metrics = metrics
        self._spans = spans

    def accepted(self, choices: Sequence[Choice]) -> None:
        """All choices of a request."""
        self._metrics.add("requests_accepted", len(choices))
        self._metrics.observe("request_params_n", len(choices))
        for choice in choices:
            self._metrics.observe("request_params_max_tokens", choice.submission.sampling.max_tokens)
            self._spans.begin(choice)
            log.debug("accepted", request_id=choice.trace_id, request=choice.id, choice=choice.index)

    def refused(self, error: Overloaded) -> None:
        """A request came in vain."""
        self._metrics.add("admission_rejections", 1, (str(error.code),))

    def text_came(self, choice: Choice, count: int, now: float) -> None:
        """Text of so many tokens, which may be none."""
        if choice.last_token_at is None:
            seconds = now - choice.created_at
            self._metrics.observe("time_to_first_token_seconds", seconds)
            choice.first_token_at = now
            self._spans.first_token(choice, seconds)
            log.debug("first text", request_id=choice.trace_id, request=choice.id, seconds=seconds)
        elif count:
            self._metrics.observe("inter_token_latency_seconds", (now - choice.last_token_at) / count, count)
        self._metrics.add("generation_tokens", count)
        choice.last_token_at = now

    def finished(self, choice: Choice, cached: int, now: float) -> None:
        """A choice has all that was asked for; of its prompt so many tokens were found in the cache."""
        prompt = len(choice.submission.prompt_ids)
        self._metrics.add("prompt_tokens_cached", cached)
        self._metrics.add("prompt_tokens", prompt)
        self._metrics.observe("request_prompt_tokens", prompt)
        self._metrics.observe("e2e_request_latency_seconds", now - choice.created_at)
        if choice.first_token_at is not None and len(choice.ids) > 1:
            mean = (now - choice.first_token_at) / (len(choice.ids) - 1)
            self._metrics.observe("request_time_per_output_token_seconds", mean)

    def ended(self, choice: Choice, reason: str) -> None:
        """A choice goes no further, whatever ended it."""
        tokens = len(choice.ids)
        self._metrics.add("request_success", 1, (reason,))
        self._spans.end(choice, reason)
        log.debug("ended", request_id=choice.trace_id, request=choice.id, reason=reason, tokens=tokens)
        self._metrics.observe("request_generation_tokens", tokens)
