"""Exceptions as HTTP answers, `{"error": {"message", "type", "param", "code"}}`: everything, also what Litestar raises.

Messages that quote a request are cut, so that an error is never as large as what it answers.
"""

from typing import Any

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.types import Send

from actorlm.api.fields import limitation
from actorlm.api.schema import ErrorDescription, ErrorResponse
from actorlm.errors import ActorlmError, BadRequest, DeadlineExceeded, NotFound, Unavailable
from actorlm.invalid import json_fault

log = structlog.get_logger(__name__)

MAX_MESSAGE = 500
MAX_PARAM = 100


class MethodNotAllowed(BadRequest):
    """The route has no such method."""

    status = 405
    code = "method_not_allowed"


class RequestTimeout(BadRequest):
    """The request did not arrive in time."""

    status = 408
    code = "request_timeout"


class ClientGone(BadRequest):
    """The client left before its request had arrived. Nobody reads the answer."""


class BodyTooLarge(BadRequest):
    """The body exceeds the limit."""

    status = 413
    code = "request_too_large"


class Conflict(BadRequest):
    """What is ordered cannot be done as things are."""

    status = 409
    code = "conflict"


class TargetTooLong(BadRequest):
    """Path and query exceed the limit."""

    status = 414
    code = "target_too_long"


class HeadersTooLarge(BadRequest):
    """The headers exceed the limit, together or in number."""

    status = 431
    code = "headers_too_large"


class TooManyConnections(Unavailable):
    """The process serves as many connections as it may."""

    code = "too_many_connections"


class UnsupportedMedia(BadRequest):
    """The body is not plain JSON."""

    status = 415
    code = "unsupported_media_type"


class InternalError(ActorlmError):
    """A fault of ours. What it was is in the log, not in the answer."""

    code = "internal_error"


_FROM_STATUS: dict[int, type[ActorlmError]] = {
    400: BadRequest,
    404: NotFound,
    405: MethodNotAllowed,
    413: BodyTooLarge,
}


def invalid_body(error: msgspec.ValidationError, body: bytes) -> BadRequest:
    """What msgspec has against a body, with the path of the field as `param`: `messages[0].role`."""
    found = json_fault(error, body)
    if reason := limitation(found.field):
        return BadRequest(f"{found.field}: {found.reason}; {reason}", param=found.field)
    return BadRequest(found.message, param=found.path or None)


def as_actorlm_error(error: Exception) -> ActorlmError:
    """`error` itself, or the one of ours that it amounts to."""
    if isinstance(error, ActorlmError):
        return error
    if isinstance(error, HTTPException) and (kind := _FROM_STATUS.get(error.status_code)):
        return kind(error.detail or kind.__doc__ or "")
    log.error("request failed", error=repr(error)[:MAX_MESSAGE], exc_info=error)
    return InternalError("the server failed to answer this request; its log tells why")


def describe(error: ActorlmError) -> ErrorResponse:
    """The body of an error."""
    param = error.param[:MAX_PARAM] if error.param is not None else None
    return ErrorResponse(ErrorDescription(error.message[:MAX_MESSAGE], error.type, param, error.code))


def headers_of(error: Exception) -> dict[str, str]:
    """The headers that go with an error."""
    if isinstance(error, ActorlmError) and error.retry_after is not None:
        return {"retry-after": str(error.retry_after)}
    if isinstance(error, DeadlineExceeded):  # OpenAI's clients would try again, and load the server once more
        return {"x-should-retry": "false"}
    if isinstance(error, RequestTimeout):
        return {"connection": "close"}
    if isinstance(error, HTTPException) and error.headers:
        return dict(error.headers)
    return {}


def answer_exception(request: Request[Any, Any, Any], error: Exception) -> Response[ErrorResponse]:
    """Litestar's handler of every exception."""
    ours = as_actorlm_error(error)
    if isinstance(error, HTTPException) and isinstance(ours, (NotFound, MethodNotAllowed)):
        ours.message = f"{request.method} {request.scope['path']} is no route of this server"
    return Response(describe(ours), status_code=ours.status, headers=headers_of(error), media_type="application/json")


async def send_error(error: Exception, send: Send, headers: dict[str, str] | None = None) -> None:
    """Answers with an error outside of Litestar's handlers."""
    ours = as_actorlm_error(error)
    body = msgspec.json.encode(describe(ours))
    fields = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **headers_of(error),
        **(headers or {}),
    }
    encoded = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": ours.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": False})
