"""The API key, checked before routing: an unknown path needs it like any other.

Only GET and HEAD of exactly `/health` go without. The key is a bearer token; a query parameter or a second
Authorization header is not looked at.
"""

import structlog
from litestar.types import ASGIApp, Receive, Scope, Send

from actorlm.api.callers import ANYBODY, Caller
from actorlm.api.errors import send_error
from actorlm.api.keys import Keys
from actorlm.errors import Unauthorized


class Guarded:
    """ASGI middleware that lets through what brings one of `keys`, and says whose it is in scope, log and `caller_of`.

    `what` is asked for is for the refusal.
    """

    def __init__(self, app: ASGIApp, keys: Keys, what: str = "the API key") -> None:
        self._app = app
        self._keys = keys
        self._what = what

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on, or answers 401."""
        if is_liveness(scope):
            await self._app(scope, receive, send)
        elif (caller := self._caller(scope)) is not None:
            scope["state"]["caller"] = caller
            with structlog.contextvars.bound_contextvars(caller=caller.name):
                await self._app(scope, receive, send)
        else:
            error = Unauthorized(f"give {self._what} of this server in the header `Authorization: Bearer KEY`")
            await send_error(error, send, {"www-authenticate": "Bearer"})

    def _caller(self, scope: Scope) -> Caller | None:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return None
        scheme, _, key = given[0].partition(b" ")
        return self._keys.find(key.strip()) if scheme.lower() == b"bearer" else None


def caller_of(scope: Scope) -> Caller:
    """Whose key a request has brought; anybody's without keys."""
    caller: Caller = scope["state"].get("caller", ANYBODY)
    return caller


def is_liveness(scope: Scope) -> bool:
    """Whether this is the one question that needs no key."""
    return scope["path"] == "/health" and scope.get("method") in ("GET", "HEAD")
