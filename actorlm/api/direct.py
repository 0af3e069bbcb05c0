"""The generating routes for callers that bring no HTTP: the same checks, submissions and errors, and no answer to send.

Fields that only say how HTTP is to answer have no meaning here, and are refused by name.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from actorlm.api import chat, completions
from actorlm.api.app import draw_seed
from actorlm.api.body import decode
from actorlm.api.envelope import envelope
from actorlm.api.errors import as_actorlm_error, describe
from actorlm.api.lower import DrawSeed
from actorlm.api.ports import Backend, Begun, Envelope, Limits
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

    async def complete(
        self,
        body: bytes,
        trace_id: str,
        session: str = "",
        replica: int | None = None,
        timeout_s: float | None = None,
    ) -> Begun:
        """See `api.ports.Direct`."""
        around = partial(envelope, trace_id, session, replica, timeout_s)
        return await self._begin(body, CompletionRequest, completions.answer, around)

    async def chat(
        self,
        body: bytes,
        trace_id: str,
        session: str = "",
        replica: int | None = None,
        timeout_s: float | None = None,
    ) -> Begun:
        """See `api.ports.Direct`."""
        around = partial(envelope, trace_id, session, replica, timeout_s)
        return await self._begin(body, ChatCompletionRequest, chat.answer, around)

    async def _begin(
        self,
        body: bytes,
        kind: type[R],
        answer: Callable[[R, Backend, DrawSeed, Envelope], Awaitable[Begun]],
        around: Callable[[Limits], Envelope],
    ) -> Begun:
        try:
            check_state(self._backend, ACCEPTING)
            sent_in = around(self._backend.limits)
            request: R = decode(body, kind)
            _check_fields(request)
            return await answer(request, self._backend, self._draw_seed, sent_in)
        except Exception as error:
            ours = as_actorlm_error(error)
            described = describe(ours).error
            ours.message, ours.param = described.message, described.param
            raise ours from error


def _check_fields(request: GenerationRequest) -> None:
    for name in ONLY_HTTP:
        if getattr(request, name, None):
            raise BadRequest(f"{name}: only HTTP answers have this; leave it out", param=name)
