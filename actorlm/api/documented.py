"""What OpenAPI says of our routes beyond their types: errors, and the two forms of a generated answer."""

from dataclasses import dataclass
from typing import Any

from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Operation, Schema
from litestar.openapi.spec.enums import OpenAPIType

from actorlm.api.envelope import PARAMETERS
from actorlm.api.schema import ErrorResponse

_EVENTS = Schema(
    type=OpenAPIType.STRING,
    description="Server-sent events: each `data:` line is a chunk, an error, or at last `[DONE]`.",
)
_MEANINGS = {
    400: "The request cannot be served as it is written",
    401: "No API key, or a wrong one",
    404: "No such route or model",
    408: "The body did not arrive in time",
    413: "The body is too large",
    415: "The body is not plain JSON",
    429: "Too many requests wait; try again after Retry-After seconds",
    500: "A fault of the server",
    504: "The request waited too long, or took longer than it may",
    503: "The service is starting, draining or repairing itself; try again after Retry-After seconds",
}


def errors(*statuses: int) -> dict[int, ResponseSpec]:
    """The documentation of these error statuses."""
    return {
        status: ResponseSpec(ErrorResponse, generate_examples=False, description=_MEANINGS[status])
        for status in statuses
    }


def answers(kind: type[Any]) -> dict[int, ResponseSpec]:
    """The documentation of a generating route whose whole answer is a `kind`."""
    whole = ResponseSpec(kind, generate_examples=False, description="The answer, whole or as events")
    return {200: whole} | errors(*_MEANINGS)


@dataclass
class GeneratingOperation(Operation):
    """An operation whose answer is JSON, or a stream of events if the request asks for one, by a chosen replica."""

    def __post_init__(self) -> None:
        """Adds the stream and the headers to what Litestar found."""
        self.parameters = [*(self.parameters or []), *PARAMETERS]
        answer = (self.responses or {}).get("200")
        if isinstance(answer, OpenAPIResponse) and answer.content is not None:
            answer.content["text/event-stream"] = OpenAPIMediaType(schema=_EVENTS)
