"""Spans of OpenTelemetry: a tracer of this process's own, and a thread that takes spans to a collector.

OpenTelemetry is an extra and slow to import, so it is imported where a tracer is made. Spans wait in a bounded queue; a
collector that is away costs them, and nothing else: it is told of once. Besides the endpoint, the variables that
OpenTelemetry's own SDK knows hold: headers, certificates, resource attributes, sizes of its queue.
"""
# ruff: noqa: PLC0415 - see above

import logging
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import structlog

from actorlm import __version__
from actorlm.config import ObservabilityConfig
from actorlm.errors import ConfigError

EXPORT_TIMEOUT_S = 5
MAX_QUEUED = 8192
DELAY_MS = 1000
FLUSH_MS = 1000
TRACES_PATH = "/v1/traces"

log = structlog.get_logger(__name__)


def check(options: ObservabilityConfig) -> None:
    """Raises ConfigError for an endpoint that is none, or if the extra is not installed."""
    if options.otlp_endpoint is None:
        return
    _url(options.otlp_endpoint)
    try:
        found = find_spec("opentelemetry.sdk.trace") and find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ConfigError("--otlp-endpoint needs OpenTelemetry, which is not installed: pip install 'actorlm[otel]'")


def _url(endpoint: str) -> str:
    """Where spans are posted: the path of OTLP, unless the endpoint has one. Raises ConfigError."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--otlp-endpoint {endpoint} is no URL of OTLP over HTTP, such as http://127.0.0.1:4318")
    return endpoint if parts.path.strip("/") else endpoint.rstrip("/") + TRACES_PATH


class Traces:
    """Makes spans. Times are Unix nanoseconds; a span without `parent` takes the one around the calling task."""

    def __init__(self, options: ObservabilityConfig, actor: str) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        assert options.otlp_endpoint is not None, "traces have an endpoint"
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it tells of each failure; we tell of the first
        exporter = OTLPSpanExporter(endpoint=_url(options.otlp_endpoint), timeout=EXPORT_TIMEOUT_S)
        ours = Resource({"service.name": "actorlm", "service.version": __version__, "service.instance.id": actor})
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(options.trace_share)),
            resource=ours.merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(_told(exporter), max_queue_size=MAX_QUEUED, schedule_delay_millis=DELAY_MS)
        )
        self._tracer = self._provider.get_tracer("actorlm", __version__)
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, name: str, *, parent: Any = None, start_ns: int | None = None, attributes: Any = None) -> Any:
        """A span below `parent`."""
        context = None if parent is None else self._trace.set_span_in_context(parent)
        return self._tracer.start_span(name, context=context, start_time=start_ns, attributes=attributes)

    def serve(self, name: str, headers: dict[str, str], attributes: Any) -> Any:
        """The span of a request that came from outside, below the span that its W3C headers name, if they do."""
        context = self._propagator.extract(headers)
        kind = self._trace.SpanKind.SERVER
        return self._tracer.start_span(name, context=context, kind=kind, attributes=attributes)

    def around(self, span: Any) -> Any:
        """A context manager: `span` is around all that the task does in it."""
        return self._trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False)

    def fail(self, span: Any, reason: str) -> None:
        """The span ends with an error."""
        span.set_status(self._trace.StatusCode.ERROR, reason)

    def flush(self) -> None:
        """Sends what waits, within FLUSH_MS. Blocks."""
        self._provider.force_flush(FLUSH_MS)


def _told(exporter: Any) -> Any:
    """The exporter, whose failures are told of once, until it works again."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Told(SpanExporter):  # type: ignore[misc]
        """Passes on."""

        works = True

        def export(self, spans: Any) -> Any:
            """See `SpanExporter`."""
            result = exporter.export(spans)
            works = result is SpanExportResult.SUCCESS
            if works != self.works:
                self.works = works
                if works:
                    log.info("spans are delivered again")
                else:
                    log.warning("spans are not delivered; they are dropped until they are")
            return result

        def shutdown(self) -> None:
            """See `SpanExporter`."""
            exporter.shutdown()

    return Told()
