"""The generating routes for callers that bring no HTTP: the same checks, submissions and errors, and no answer to send.

Fields that only say how HTTP is to answer have no meaning here, and are refused by name.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from actorlm.api import chat, completions
from actorlm.api.app import draw_seed
from actorlm.api.body import decode
from actorlm.api.callers import ANYBODY, Caller
from actorlm.api.errors import as_actorlm_error, describe
from actorlm.api.lower import DrawSeed
from actorlm.api.placement import check_placement
from actorlm.api.ports import Backend, Begun, Placement
from actorlm.api.schema import GenerationRequest
from actorlm.api.schema_chat import ChatCompletionRequest
from actorlm.api.schema_completions import CompletionRequest
from actorlm.api.status import ACCEPTING, check_state
from actorlm.errors import BadRequest

ONLY_HTTP = ("stream", "stream_options", "echo", "return_token_ids")

R = TypeVar("R", bound=GenerationRequest)


class DirectRequests:
    """Implements `api.ports.Direct`."""

    def __init__(self, backend: Backend, draw_seed: DrawSeed = draw_seed) -> None:
        self._backend = backend
        self._draw_seed = draw_seed

    async def complete(self, body: bytes, trace_id: str, session: str = "", replica: int | None = None) -> Begun:
        """See `api.ports.Direct`."""
        return await self._begin(body, CompletionRequest, completions.answer, trace_id, session, replica)

    async def chat(self, body: bytes, trace_id: str, session: str = "", replica: int | None = None) -> Begun:
        """See `api.ports.Direct`."""
        return await self._begin(body, ChatCompletionRequest, chat.answer, trace_id, session, replica)

    async def _begin(
        self,
        body: bytes,
        kind: type[R],
        answer: Callable[[R, Backend, DrawSeed, str, Placement, Caller], Awaitable[Begun]],
        trace_id: str,
        session: str,
        replica: int | None,
    ) -> Begun:
        try:
            check_state(self._backend, ACCEPTING)
            placement = check_placement(session, replica, self._backend.limits)
            request: R = decode(body, kind)
            _check_fields(request)
            return await answer(request, self._backend, self._draw_seed, trace_id, placement, ANYBODY)
        except Exception as error:
            ours = as_actorlm_error(error)
            described = describe(ours).error
            ours.message, ours.param = described.message, described.param
            raise ours from error


def _check_fields(request: GenerationRequest) -> None:
    for name in ONLY_HTTP:
        if getattr(request, name, None):
            raise BadRequest(f"{name}: only HTTP answers have this; leave it out", param=name)
