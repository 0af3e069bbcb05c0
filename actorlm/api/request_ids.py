"""The id of a request: the client's X-Request-Id if it is one, else ours. In the answer's headers and every log line.

It is only a label. Whatever must be unique has an id of its own.
"""

import re
from collections.abc import Awaitable
from uuid import uuid4

import structlog
from litestar.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"
VALID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class RequestIds:
    """ASGI middleware that puts the id into `scope["state"]["request_id"]`, the log context and the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on."""
        request_id = _given(scope) or b"req_" + uuid4().hex.encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()

        def send_with_id(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (HEADER, request_id)]
            return send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id.decode()):
            await self._app(scope, receive, send_with_id)


def _given(scope: Scope) -> bytes | None:
    given = [value for name, value in scope["headers"] if name == HEADER]
    return given[0] if len(given) == 1 and VALID.fullmatch(given[0]) else None
