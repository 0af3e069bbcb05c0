"""The HTTP application: routes, and what surrounds them.

From the outside in: request ids, the log of requests and their spans where they are kept, the API key, Litestar's
router with our errors. There is no CORS, and no header of a proxy is trusted.
"""

import secrets

from litestar import Litestar
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp, Receive, Scope, Send

from actorlm.api.access import AccessLog
from actorlm.api.auth import Guarded
from actorlm.api.body import JsonRequest
from actorlm.api.chat import chat_route
from actorlm.api.completions import completion_route
from actorlm.api.errors import answer_exception
from actorlm.api.keys import WatchedKeys
from actorlm.api.lower import DrawSeed
from actorlm.api.models import model_routes
from actorlm.api.openapi import document_route
from actorlm.api.ports import Backend
from actorlm.api.request_ids import RequestIds
from actorlm.api.status import status_routes
from actorlm.api.tokenize import tokenize_routes
from actorlm.api.tracing import RequestSpans
from actorlm.config import HttpConfig
from actorlm.tracing import Traces

BODY_TIMEOUT_S = 15.0
"""How long a body may stand still before the request is refused with 408."""


def draw_seed() -> int:
    """A seed for a request that brings none: 63 random bits."""
    return secrets.randbits(63)


class Application:
    """An ASGI application, and what it must do beside answering."""

    def __init__(self, app: ASGIApp, keys: WatchedKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        await self._app(scope, receive, send)

    async def watch(self) -> None:
        """Reads files again that change. May return; to be cancelled else."""
        await self._keys.watch()


def create_app(
    backend: Backend,
    config: HttpConfig,
    *,
    draw_seed: DrawSeed = draw_seed,
    body_timeout_s: float = BODY_TIMEOUT_S,
    log_requests: bool = False,
    traces: Traces | None = None,
) -> Application:
    """The whole application. Raises ConfigError for an API key that is empty."""
    keys = WatchedKeys(config.api_key, config.api_keys_file, "api_key", tries_on=True)

    def documented() -> list[HTTPRouteHandler]:
        return routes(backend, draw_seed)

    app: ASGIApp = Litestar(
        [*documented(), document_route(documented, guarded=keys.keys is not None)],
        request_class=JsonRequest,
        request_max_body_size=config.max_body_mib * 2**20,
        exception_handlers={Exception: answer_exception},
        openapi_config=None,
        logging_config=None,
        state=State({"body_timeout_s": body_timeout_s, "stream_keep_alive_s": config.stream_keep_alive_s}),
    )
    if keys.keys is not None:
        app = Guarded(app, keys.keys)
    if traces is not None:
        app = RequestSpans(app, traces)
    if log_requests:
        app = AccessLog(app)
    return Application(RequestIds(app), keys)


def routes(backend: Backend, draw_seed: DrawSeed) -> list[HTTPRouteHandler]:
    """Every documented route."""
    generating = [chat_route(backend, draw_seed), completion_route(backend, draw_seed)]
    return [*generating, *tokenize_routes(backend), *model_routes(backend), *status_routes(backend)]
