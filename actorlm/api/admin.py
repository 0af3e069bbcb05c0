"""The routes of operators, below `/admin`: an application of its own, which is there only if an admin key is.

Nothing of it can be reached through the other routes, however a path is written, and its key opens nothing of theirs.
"""

from typing import Any

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp, Receive, Scope, Send

from actorlm.api.ports import Operations

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

    return [tree]
