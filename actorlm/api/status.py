"""Whether the service can serve: liveness, readiness, version, metrics, and the guards of the other routes.

Liveness is 200 while the tree works, drains or has lost a part; readiness only while new requests are welcome, which
ends a while before they are refused, if so configured. Before the
tree is ready, and after it has lost what it cannot do without, everything but the version answers 503.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from litestar import HttpMethod, Response, get, route
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler

from actorlm import __version__
from actorlm.api.documented import errors
from actorlm.api.ports import Backend
from actorlm.api.schema import Status, Version
from actorlm.errors import Unavailable
from actorlm.messages.actor import TreeState

Guard = Callable[[ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], Awaitable[None]]

ACCEPTING = frozenset(state for state in TreeState if state.accepts)
ALIVE = ACCEPTING | {TreeState.DRAINING}
INVITING = ACCEPTING - {TreeState.LEAVING}
"""Where load balancers should send requests."""
PROMETHEUS = "text/plain; version=0.0.4"
"""Litestar adds the charset."""


def alive(backend: Backend) -> Guard:
    """A guard that raises Unavailable unless the tree works, drains or has lost a part."""
    return _guard(backend, ALIVE)


def accepting(backend: Backend) -> Guard:
    """A guard that raises Unavailable unless the tree takes new requests."""
    return _guard(backend, ACCEPTING)


def inviting(backend: Backend) -> Guard:
    """A guard that raises Unavailable unless new requests are welcome."""
    return _guard(backend, INVITING)


def check_state(backend: Backend, states: frozenset[TreeState]) -> None:
    """Raises Unavailable in any other state."""
    if backend.state not in states:
        raise Unavailable(f"the service is {backend.state}; try again later")


def _guard(backend: Backend, states: frozenset[TreeState]) -> Guard:
    async def guard(_: ASGIConnection[Any, Any, Any, Any], __: BaseRouteHandler) -> None:  # a plain one gets a thread
        check_state(backend, states)

    return guard


def status_routes(backend: Backend) -> list[HTTPRouteHandler]:
    """The routes, for this backend."""

    @route(
        "/health",
        http_method=[HttpMethod.GET, HttpMethod.HEAD],
        guards=[alive(backend)],
        responses=errors(503),
        summary="Liveness; needs no key",
    )
    async def health() -> Status:
        return Status(backend.state.value)

    @route(
        "/ready",
        http_method=[HttpMethod.GET, HttpMethod.HEAD],
        guards=[inviting(backend)],
        responses=errors(401, 503),
        summary="Readiness for new requests",
    )
    async def ready() -> Status:
        return Status(backend.state.value)

    @get("/version", responses=errors(401), operation_id="version", summary="The version of the server")
    async def version() -> Version:
        return Version(__version__)

    @get(
        "/metrics",
        guards=[alive(backend)],
        media_type=PROMETHEUS,
        responses=errors(401, 503),
        operation_id="metrics",
        summary="Metrics in Prometheus' text format",
    )
    async def metrics() -> Response[bytes]:
        return Response(await backend.metrics(), media_type=PROMETHEUS)

    return [health, ready, version, metrics]
