"""What comes with a request beside its body, from headers or from a client's arguments: checked, or refused by name."""

import re

from litestar.openapi.spec import Parameter, Schema
from litestar.openapi.spec.enums import OpenAPIType
from litestar.types import Scope

from actorlm.api import placement
from actorlm.api.auth import caller_of
from actorlm.api.callers import ANYBODY
from actorlm.api.ports import Envelope, Limits
from actorlm.errors import BadRequest

TIMEOUT = "X-Request-Timeout"
MAX_TIMEOUT_S = 86_400
SECONDS = re.compile(r"[0-9]{1,5}(\.[0-9]{1,6})?")

PARAMETERS = (
    *placement.PARAMETERS,
    Parameter(
        TIMEOUT,
        "header",
        Schema(type=OpenAPIType.NUMBER, exclusive_minimum=0, maximum=MAX_TIMEOUT_S),
        "Seconds from acceptance after which the request ends with an error, if it has not ended; at most the server's"
        " --request-timeout-s",
    ),
)


def envelope_of(scope: Scope, limits: Limits) -> Envelope:
    """The envelope of a request over HTTP. Raises BadRequest naming the header at fault."""
    seconds = placement.header(scope["headers"], TIMEOUT)
    if seconds is not None and not SECONDS.fullmatch(seconds):
        raise _no_timeout(seconds, TIMEOUT)
    return Envelope(
        scope["state"]["request_id"],
        placement.placement_of(scope, limits),
        caller_of(scope),
        None if seconds is None else _checked(float(seconds), TIMEOUT),
    )


def envelope(request_id: str, session: str, replica: int | None, timeout_s: float | None, limits: Limits) -> Envelope:
    """The envelope of a client's request, who is anybody. Raises BadRequest naming the argument at fault."""
    place = placement.check_placement(session, replica, limits)
    return Envelope(request_id, place, ANYBODY, None if timeout_s is None else _checked(timeout_s, "timeout_s"))


def _checked(seconds: float, name: str) -> float:
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise _no_timeout(seconds, name)
    return seconds


def _no_timeout(given: str | float, name: str) -> BadRequest:
    return BadRequest(f"{name} is {given!r}; it must be seconds, above 0 and at most {MAX_TIMEOUT_S}", param=name)
