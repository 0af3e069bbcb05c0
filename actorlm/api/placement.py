"""Where a request wants to run: the two headers, checked, and their kin of the client over ZeroMQ."""

import re
from collections.abc import Iterable

from litestar.openapi.spec import Parameter, Schema
from litestar.openapi.spec.enums import OpenAPIType
from litestar.types import Scope

from actorlm.api.ports import Limits, Placement
from actorlm.errors import BadRequest
from actorlm.wire import MAX_SESSION

SESSION = "X-Session-ID"
REPLICA = "X-data-parallel-rank"

VALID = re.compile(rf"[!-~]{{1,{MAX_SESSION}}}")
NUMBER = re.compile(r"[0-9]{1,9}")

PARAMETERS = (
    Parameter(
        SESSION,
        "header",
        Schema(type=OpenAPIType.STRING, min_length=1, max_length=MAX_SESSION, pattern="^[!-~]+$"),
        "Requests of the same session go to the same replica, as long as that lives and is not overloaded",
    ),
    Parameter(
        REPLICA, "header", Schema(type=OpenAPIType.INTEGER, minimum=0), "The replica that is to answer, from 0 on"
    ),
)


def placement_of(scope: Scope, limits: Limits) -> Placement:
    """What the headers of a request ask for. Raises BadRequest naming the header at fault."""
    session, number = header(scope["headers"], SESSION), header(scope["headers"], REPLICA)
    if session is not None:
        _check_session(session, SESSION)
    return Placement(session or "", None if number is None else _replica(number, REPLICA, limits))


def check_placement(session: str, replica: int | None, limits: Limits) -> Placement:
    """What a client's arguments ask for; an empty session is none. Raises BadRequest naming the argument at fault."""
    if session:
        _check_session(session, "session")
    return Placement(session, None if replica is None else _replica(str(replica), "replica", limits))


def header(headers: Iterable[tuple[bytes, bytes]], name: str) -> str | None:
    """The value of a header, if it is sent. Raises BadRequest if it is sent more than once."""
    given = [value.decode("latin-1") for key, value in headers if key == name.lower().encode()]
    if len(given) > 1:
        raise BadRequest(f"{name} is sent {len(given)} times; send it once", param=name)
    return given[0] if given else None


def _check_session(session: str, name: str) -> None:
    if not VALID.fullmatch(session):
        raise BadRequest(f"{name} is {session!r}; it must be 1 to {MAX_SESSION} visible ASCII characters", param=name)


def _replica(number: str, name: str, limits: Limits) -> int:
    if not NUMBER.fullmatch(number) or int(number) >= limits.replicas:
        raise BadRequest(
            f"{name} is {number!r}; it must be a whole number from 0 to {limits.replicas - 1}, or be left out",
            param=name,
        )
    return int(number)
