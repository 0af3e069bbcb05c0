"""The API key, checked before routing: an unknown path needs it like any other.

Only GET and HEAD of exactly `/health` go without. The key is a bearer token; a query parameter or a second
Authorization header is not looked at.
"""

import hmac

from litestar.types import ASGIApp, Receive, Scope, Send

from actorlm.api.errors import send_error
from actorlm.errors import ConfigError, Unauthorized


class ApiKey:
    """ASGI middleware that lets through what brings the key. Raises ConfigError for a key that is empty."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        if not key.strip():
            raise ConfigError("api_key is empty; give a key, or none to serve everybody")
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on, or answers 401."""
        if _is_liveness(scope) or self._permits(scope):
            await self._app(scope, receive, send)
        else:
            error = Unauthorized("give the API key of this server in the header `Authorization: Bearer KEY`")
            await send_error(error, send, {"www-authenticate": "Bearer"})

    def _permits(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, key = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)


def _is_liveness(scope: Scope) -> bool:
    return scope["path"] == "/health" and scope.get("method") in ("GET", "HEAD")
