"""The routes of operators, below `/admin`: an application of its own, which is there only if an admin key is.

Nothing of it can be reached through the other routes, however a path is written, and its key opens nothing of theirs.
"""

from typing import Any, Literal

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery
from litestar.types import ASGIApp, Receive, Scope, Send

from actorlm.api.errors import Conflict
from actorlm.api.ports import Operations
from actorlm.errors import BadRequest, NotFound
from actorlm.messages.operator import REFUSED_STATUS, OrderEnded, OrderProgressed
from actorlm.messages.supervisor import LONGEST_DRAIN_S, DrainSeconds, DrainTree, RestartActors

PREFIX = "/admin"


class Split:
    """ASGI middleware that takes what begins with PREFIX to `admin`, and all else to `app`."""

    def __init__(self, app: ASGIApp, admin: ASGIApp) -> None:
        self._app = app
        self._admin = admin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on."""
        path = scope["path"]
        is_admin = path == PREFIX or path.startswith(f"{PREFIX}/")
        await (self._admin if is_admin else self._app)(scope, receive, send)


def admin_routes(operations: Operations) -> list[HTTPRouteHandler]:
    """The routes, for these operations."""

    @get(f"{PREFIX}/tree")
    async def tree() -> dict[str, Any]:
        described = await operations.describe()
        actors = [msgspec.structs.asdict(actor) for actor in described.actors]
        return {**msgspec.structs.asdict(described), "actors": actors}

    @post(f"{PREFIX}/drain")
    async def drain(seconds: FromQuery[str | None] = None) -> Response[Ordered]:
        return answered(await operations.order(DrainTree(drain_seconds(seconds))))

    @post(f"{PREFIX}/restart/{{actor:str}}")
    async def restart(actor: FromPath[str], seconds: FromQuery[str | None] = None) -> Response[Ordered]:
        return answered(await operations.order(RestartActors(actor, drain_seconds(seconds))))

    return [tree, drain, restart]


class Ordered(msgspec.Struct, frozen=True):
    """What became of an order; one that has begun goes on by itself, and the tree's log says how."""

    status: Literal["begun", "done"]
    text: str


def drain_seconds(text: str | None) -> float | None:
    """The time that requests get to end in; None leaves it to the tree's options. Raises BadRequest."""
    if text is None:
        return None
    try:
        return msgspec.convert(text, DrainSeconds, strict=False)
    except msgspec.ValidationError:
        raise BadRequest(
            f"seconds is {text!r}; it must be a number from 0 to {LONGEST_DRAIN_S:g}, or be left out", param="seconds"
        ) from None


def answered(said: OrderProgressed | OrderEnded) -> Response[Ordered]:
    """The answer for the first that was said of an order. Raises NotFound, Conflict for what is not done."""
    if isinstance(said, OrderProgressed):
        return Response(Ordered("begun", said.text), status_code=202)
    if said.status == REFUSED_STATUS:
        raise NotFound(said.text, param="actor", code="actor_not_found")
    if said.status:
        raise Conflict(said.text)
    return Response(Ordered("done", said.text), status_code=200)
