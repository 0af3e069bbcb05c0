"""The span of each HTTP request that generates: ASGI middleware, there only where traces are exported.

It takes up the W3C `traceparent` of the client, and is around all that the request's task does.
"""

import structlog
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from actorlm.tracing import Traces

CARRIED = (b"traceparent", b"tracestate")


class RequestSpans:
    """Makes a span for each POST; what only asks for a state is not traced."""

    def __init__(self, app: ASGIApp, traces: Traces) -> None:
        self._app = app
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on."""
        if scope.get("method") != "POST":
            await self._app(scope, receive, send)
            return
        path, request_id = scope["path"], scope["state"]["request_id"]
        attributes = {"http.request.method": "POST", "url.path": path, "gen_ai.request.id": request_id}
        span = self._traces.serve(f"POST {path}", _carried(scope), attributes)

        async def send_and_see(message: Message) -> None:
            if message["type"] == "http.response.start":
                span.set_attribute("http.response.status_code", message["status"])
                if message["status"] >= 500:
                    self._traces.fail(span, f"answered with {message['status']}")
            await send(message)

        trace_id = f"{span.get_span_context().trace_id:032x}"
        try:
            with self._traces.around(span), structlog.contextvars.bound_contextvars(trace_id=trace_id):
                await self._app(scope, receive, send_and_see)
        finally:
            _tell_of_usage(scope, span)
            span.end()


def _carried(scope: Scope) -> dict[str, str]:
    return {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in CARRIED}


def _tell_of_usage(scope: Scope, span: object) -> None:
    tally = scope["state"].get("tally")
    if tally is not None:
        usage = tally.usage()
        span.set_attributes(  # type: ignore[attr-defined]
            {
                "gen_ai.request.n": len(tally.reasons),
                "gen_ai.usage.prompt_tokens": usage.prompt_tokens,
                "gen_ai.usage.completion_tokens": usage.completion_tokens,
                "gen_ai.response.finish_reasons": [reason or "none" for reason in tally.reasons],
            }
        )
