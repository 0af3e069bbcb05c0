"""`GET /v1/models` and `GET /v1/models/{id}`."""

from pathlib import Path

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from actorlm.api import lower
from actorlm.api.documented import errors
from actorlm.api.ports import Backend
from actorlm.api.schema import Model, ModelList
from actorlm.api.status import alive


def model_routes(backend: Backend) -> list[HTTPRouteHandler]:
    """The routes, for this backend."""

    @get(
        "/v1/models",
        guards=[alive(backend)],
        operation_id="listModels",
        responses=errors(401, 503),
        summary="List the models",
    )
    async def list_models() -> ModelList:
        return ModelList("list", [served(backend)])

    @get(
        "/v1/models/{model:path}",
        guards=[alive(backend)],
        operation_id="retrieveModel",
        responses=errors(400, 401, 404, 503),
        summary="Describe a model",
    )
    async def retrieve_model(model: FromPath[Path]) -> Model:
        lower.check_model(str(model).lstrip("/"), backend.served_name.lstrip("/"))
        return served(backend)

    return [list_models, retrieve_model]


def served(backend: Backend) -> Model:
    """The one model."""
    return Model(backend.served_name, "model", backend.created, "actorlm", backend.limits.context)
