"""One line of the log for each HTTP request that has been answered, or left: ASGI middleware, there only if asked for.

Probes that succeed are left out. The request's id is bound around it. Answers of generating routes leave their `Tally`
in the scope's state, and so the line has what was generated, too.
"""

import time
from typing import Any

import structlog
from litestar.types import ASGIApp, Message, Receive, Scope, Send

QUIET = frozenset({"/health", "/ready", "/metrics"})

log = structlog.get_logger(__name__)


class AccessLog:
    """Logs what has passed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on, and logs at the end; `status` 0 is a client that left before its answer began."""
        began, status = time.perf_counter(), 0

        async def send_and_see(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_see)
        finally:
            if scope["path"] not in QUIET or not 200 <= status < 300:
                seconds = round(time.perf_counter() - began, 6)
                log.info(
                    "request", method=scope.get("method", ""), path=scope["path"], status=status, seconds=seconds,
                    **_generated(scope),
                )  # fmt: skip


def _generated(scope: Scope) -> dict[str, Any]:
    tally = scope["state"].get("tally")
    if tally is None:
        return {}
    usage = tally.usage()
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.prompt_tokens_details.cached_tokens,
        "finish_reasons": [reason or "none" for reason in tally.reasons],
    }
