"""`POST /v1/chat/completions`."""

import time
from typing import Any
from uuid import uuid4

import structlog
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody

from actorlm.api import lower
from actorlm.api.documented import GeneratingOperation, answers
from actorlm.api.envelope import envelope_of
from actorlm.api.fields import CHAT, without_effect
from actorlm.api.logprobs import ChatFormat, vocabulary
from actorlm.api.lower_chat import chat_rendering, check_text_only, conversation, max_completion_tokens, top_logprobs
from actorlm.api.ports import Backend, Envelope
from actorlm.api.schema_chat import ChatCompletion, ChatCompletionRequest
from actorlm.api.status import accepting
from actorlm.api.stream import Answer, Tally
from actorlm.api.wire import ChatWire, Identity

log = structlog.get_logger(__name__)


def chat_route(backend: Backend, draw_seed: lower.DrawSeed) -> HTTPRouteHandler:
    """The route, for this backend."""

    @post(
        "/v1/chat/completions",
        status_code=200,
        guards=[accepting(backend)],
        operation_id="createChatCompletion",
        operation_class=GeneratingOperation,
        responses=answers(ChatCompletion),
        summary="Answer a conversation",
    )
    async def create_chat_completion(data: JSONBody[ChatCompletionRequest], request: Request[Any, Any, Any]) -> Answer:
        return await answer(data, backend, draw_seed, envelope_of(request.scope, backend.limits))

    return create_chat_completion


async def answer(
    request: ChatCompletionRequest,
    backend: Backend,
    draw_seed: lower.DrawSeed,
    envelope: Envelope,
) -> Answer:
    """Checks a request and begins to answer it. Raises ActorlmError."""
    lower.check_model(request.model, backend.served_name)
    stream, n = lower.wants_stream(request), lower.check_choices(request, 1, backend.limits)
    check_text_only(request)
    if ignored := without_effect(request, CHAT):
        log.debug("fields without effect", fields=ignored)
    with lower.about("messages"):
        prompt_ids = await backend.render_chat(conversation(request.messages), chat_rendering(request, backend.limits))
    model, banned = backend.model, await lower.bad_words(request, backend)
    room = lower.check_prompt(prompt_ids, "messages", model.vocab_size, backend.limits)
    wanted = lower.Wanted(max_completion_tokens(request, room), top_logprobs(request))
    choices = lower.submissions(
        request,
        prompt_ids,
        wanted=wanted,
        n=n,
        model=model,
        banned=banned,
        draw_seed=draw_seed,
        priority=request.priority or 0,
        cache_salt=request.cache_salt or "",
    )
    usage = lower.usage_reports(request)
    identity = Identity(f"chatcmpl-{uuid4().hex}", int(time.time()), backend.served_name)
    form = None if wanted.logprobs is None else ChatFormat(vocabulary(backend, skip_special_tokens=False))
    wire = ChatWire(identity, n, usage.last, form, prompt_ids if request.return_token_ids else None)
    generation = backend.submit(choices, envelope)
    return Answer(generation, wire, Tally([len(prompt_ids)], n), stream=stream, usage=usage)
