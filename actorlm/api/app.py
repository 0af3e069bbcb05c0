"""The HTTP application: routes, and what surrounds them.

From the outside in: request ids, the log of requests and their spans where they are kept, the operators' routes apart,
the API key, Litestar's router with our errors. There is no CORS, and no header of a proxy is trusted.
"""

import asyncio
import secrets
from collections.abc import Sequence

from litestar import Litestar
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp, Receive, Scope, Send

from actorlm.api.access import AccessLog
from actorlm.api.admin import Split, admin_routes
from actorlm.api.auth import Guarded
from actorlm.api.body import JsonRequest
from actorlm.api.chat import chat_route
from actorlm.api.completions import completion_route
from actorlm.api.errors import answer_exception
from actorlm.api.keys import WatchedKeys, open_keys
from actorlm.api.lower import DrawSeed
from actorlm.api.models import model_routes
from actorlm.api.openapi import document_route
from actorlm.api.ports import Backend, Operations
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

    def __init__(self, app: ASGIApp, keys: Sequence[WatchedKeys]) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        await self._app(scope, receive, send)

    async def watch(self) -> None:
        """Reads files again that change. May return; to be cancelled else."""
        await asyncio.gather(*(keys.watch() for keys in self._keys))


def create_app(
    backend: Backend,
    config: HttpConfig,
    operations: Operations | None = None,
    *,
    draw_seed: DrawSeed = draw_seed,
    body_timeout_s: float = BODY_TIMEOUT_S,
    log_requests: bool = False,
    traces: Traces | None = None,
) -> Application:
    """The whole application, for operators too if there is an admin key. Raises ConfigError for a key that is empty."""
    api, admin = open_keys(config, tries_on=True)

    def documented() -> list[HTTPRouteHandler]:
        return routes(backend, draw_seed)

    state = State({"body_timeout_s": body_timeout_s, "stream_keep_alive_s": config.stream_keep_alive_s})
    document = document_route(documented, guarded=api.keys is not None)
    app: ASGIApp = _litestar([*documented(), document], config, state)
    if api.keys is not None:
        app = Guarded(app, api.keys)
    if admin.keys is not None:
        assert operations is not None, "who has an admin key has something to do with it"
        app = Split(app, Guarded(_litestar(admin_routes(operations), config, state), admin.keys, "the admin key"))
    if traces is not None:
        app = RequestSpans(app, traces)
    if log_requests:
        app = AccessLog(app)
    return Application(RequestIds(app), [api, admin])


def _litestar(handlers: Sequence[HTTPRouteHandler], config: HttpConfig, state: State) -> Litestar:
    return Litestar(
        handlers,
        request_class=JsonRequest,
        request_max_body_size=config.max_body_mib * 2**20,
        exception_handlers={Exception: answer_exception},
        openapi_config=None,
        logging_config=None,
        state=state,
    )


def routes(backend: Backend, draw_seed: DrawSeed) -> list[HTTPRouteHandler]:
    """Every documented route."""
    generating = [chat_route(backend, draw_seed), completion_route(backend, draw_seed)]
    return [*generating, *tokenize_routes(backend), *model_routes(backend), *status_routes(backend)]
