"""`POST /tokenize` and `POST /detokenize`: what a prompt comes to, without generating anything."""

from litestar import post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody

from actorlm.api import lower
from actorlm.api.documented import errors
from actorlm.api.lower_chat import conversation, rendering
from actorlm.api.ports import Backend
from actorlm.api.schema_tokenize import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from actorlm.api.status import alive
from actorlm.errors import BadRequest
from actorlm.sampling import check_token

OF_MESSAGES = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "documents")
"""Fields that say something only about a conversation."""

STATUSES = (400, 401, 404, 408, 413, 415, 503)


def tokenize_routes(backend: Backend) -> list[HTTPRouteHandler]:
    """The routes, for this backend."""

    @post(
        "/tokenize",
        status_code=200,
        guards=[alive(backend)],
        operation_id="tokenize",
        responses=errors(*STATUSES),
        summary="Count the tokens of a text or a conversation",
    )
    async def tokenize(data: JSONBody[TokenizeRequest]) -> Tokenized:
        lower.check_model(data.model or backend.served_name, backend.served_name)
        ids = await _token_ids(data, backend)
        texts = [backend.token(one) for one in ids] if data.return_token_strs else None
        return Tokenized(len(ids), backend.limits.context, ids, texts)

    @post(
        "/detokenize",
        status_code=200,
        guards=[alive(backend)],
        operation_id="detokenize",
        responses=errors(*STATUSES),
        summary="The text of token ids",
    )
    async def detokenize(data: JSONBody[DetokenizeRequest]) -> Detokenized:
        lower.check_model(data.model or backend.served_name, backend.served_name)
        for token in {min(data.tokens, default=0), max(data.tokens, default=0)}:
            check_token("tokens", token, backend.model.vocab_size)
        return Detokenized(
            await backend.decode(data.tokens, skip_special_tokens=False, spaces_between_special_tokens=True)
        )

    return [tokenize, detokenize]


async def _token_ids(request: TokenizeRequest, backend: Backend) -> list[int]:
    if (request.prompt is None) == (request.messages is None):
        raise BadRequest("give prompt or messages, one of them", param="prompt")
    if request.messages is not None:
        with lower.about("messages"):
            return await backend.render_chat(conversation(request.messages), rendering(request))
    for name in OF_MESSAGES:
        if getattr(request, name) is not None:
            raise BadRequest(f"{name} is about messages, and this is a prompt; leave it out", param=name)
    assert request.prompt is not None, "one of them is given"
    with lower.about("prompt"):
        (ids,) = await backend.encode([request.prompt], add_special_tokens=request.add_special_tokens is not False)
    return ids
