"""Our OpenAPI document, served alone at `/schema/openapi.json`: Litestar's own route brings pages in HTML with it.

Paths come from Litestar; structs from msgspec, which states bounds that Litestar leaves out; what each request field
does, from `fields.py`.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
from litestar import Litestar, MediaType, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme

from actorlm import __version__
from actorlm.api.fields import CHAT, COMPLETION, DETOKENIZE, TOKENIZE
from actorlm.api.schema import ErrorResponse, ModelList, Status, Version
from actorlm.api.schema_chat import ChatCompletion, ChatCompletionRequest
from actorlm.api.schema_completions import Completion, CompletionRequest
from actorlm.api.schema_tokenize import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest

STRUCTS = (
    ChatCompletionRequest,
    ChatCompletion,
    CompletionRequest,
    Completion,
    TokenizeRequest,
    Tokenized,
    DetokenizeRequest,
    Detokenized,
    ModelList,
    Status,
    Version,
    ErrorResponse,
)
FIELDS = (
    (ChatCompletionRequest, CHAT),
    (CompletionRequest, COMPLETION),
    (TokenizeRequest, TOKENIZE),
    (DetokenizeRequest, DETOKENIZE),
)


def document_route(routes: Callable[[], Sequence[HTTPRouteHandler]], *, guarded: bool) -> HTTPRouteHandler:
    """The route of the document about `routes`, which is made when it is first asked for."""

    @cache
    def document() -> dict[str, Any]:
        return describe(routes(), guarded=guarded)

    @get("/schema/openapi.json", include_in_schema=False)
    async def openapi() -> Response[dict[str, Any]]:
        return Response(document(), media_type=MediaType.JSON)

    return openapi


def describe(routes: Sequence[HTTPRouteHandler], *, guarded: bool) -> dict[str, Any]:
    """The document about `routes`; `guarded` says whether they need an API key."""
    bearer = Components(security_schemes={"key": SecurityScheme(type="http", scheme="bearer")})
    config = OpenAPIConfig(
        title="actorlm",
        version=__version__,
        components=bearer if guarded else Components(),
        security=[{"key": []}] if guarded else None,
    )
    document = Litestar(routes, openapi_config=config, logging_config=None).openapi_schema.to_schema()
    document["components"]["schemas"] = _structs()
    return document


def _structs() -> dict[str, Any]:
    _, structs = msgspec.json.schema_components(STRUCTS, ref_template="#/components/schemas/{name}")
    for kind, fields in FIELDS:
        for name, field in fields.items():
            structs[kind.__name__]["properties"][name]["description"] = f"{field.treatment}: {field.note}"
    return structs
