"""`POST /v1/completions`."""

import time
from collections.abc import Sequence
from typing import Any, Self, cast
from uuid import uuid4

import structlog
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody

from actorlm.api import lower
from actorlm.api.documented import GeneratingOperation, answers
from actorlm.api.envelope import envelope_of
from actorlm.api.fields import COMPLETION, without_effect
from actorlm.api.logprobs import CompletionFormat, vocabulary
from actorlm.api.lower_completions import Prompts, is_text, max_tokens, prompt_logprobs, prompt_tokens_kept, prompts
from actorlm.api.ports import Backend, Delta, Envelope, Generation, Submission
from actorlm.api.schema_completions import Completion, CompletionRequest
from actorlm.api.status import accepting
from actorlm.api.stream import Answer, Tally
from actorlm.api.wire import CompletionWire, Identity
from actorlm.logprobs import Scores

log = structlog.get_logger(__name__)


def completion_route(backend: Backend, draw_seed: lower.DrawSeed) -> HTTPRouteHandler:
    """The route, for this backend."""

    @post(
        "/v1/completions",
        status_code=200,
        guards=[accepting(backend)],
        operation_id="createCompletion",
        operation_class=GeneratingOperation,
        responses=answers(Completion),
        summary="Continue texts",
    )
    async def create_completion(data: JSONBody[CompletionRequest], request: Request[Any, Any, Any]) -> Answer:
        return await answer(data, backend, draw_seed, envelope_of(request.scope, backend.limits))

    return create_completion


class NothingToGenerate:
    """The generation of an echo alone: every choice ends at once, by its length."""

    def __init__(self, choices: int) -> None:
        self._deltas: list[Delta] | None = [Delta(choice, "", 0, "length") for choice in range(choices)]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[Delta]:
        deltas, self._deltas = self._deltas, None
        if deltas is None:
            raise StopAsyncIteration
        return deltas

    def read_on(self) -> None:
        """Nobody waits for it."""

    def abort(self) -> None:
        """There is nothing to end."""
        self._deltas = None


class PromptAlone:
    """A generation of which only the prompt's log-probabilities are wanted."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[Delta]:
        return [_of_prompt(delta) for delta in await anext(self._generation)]

    def read_on(self) -> None:
        """Passes on."""
        self._generation.read_on()

    def abort(self) -> None:
        """Ends the generation."""
        self._generation.abort()


def _of_prompt(delta: Delta) -> Delta:
    scores = None if delta.scores is None else Scores(delta.scores.start, delta.scores.prompt)
    return Delta(delta.choice, "", 0, "length" if delta.finish else None, delta.cached_tokens, scores=scores)


async def answer(
    request: CompletionRequest,
    backend: Backend,
    draw_seed: lower.DrawSeed,
    envelope: Envelope,
) -> Answer:
    """Checks a request and begins to answer it. Raises ActorlmError."""
    lower.check_model(request.model, backend.served_name)
    found = prompts(request.prompt)
    stream, n = lower.wants_stream(request), lower.check_choices(request, len(found), backend.limits)
    if ignored := without_effect(request, COMPLETION):
        log.debug("fields without effect", fields=ignored)
    ids = await _token_ids(found, request, backend)
    choices = await _submissions(request, ids, n, backend, draw_seed)
    echoes = await _echoes(found, ids, n, request, backend) if request.echo else []
    count, usage = len(found) * n, lower.usage_reports(request)
    identity = Identity(f"cmpl-{uuid4().hex}", int(time.time()), backend.served_name)
    shown = [one for one in ids for _ in range(n)] if request.return_token_ids else None
    wire = CompletionWire(identity, count, usage.last, echoes, _format(request, ids, n, backend), shown)
    generation: Generation = backend.submit(choices, envelope) if choices else NothingToGenerate(count)
    if choices and request.max_tokens == 0:
        generation = PromptAlone(generation)
    return Answer(generation, wire, Tally([len(one) for one in ids], n), stream=stream, usage=usage)


async def _token_ids(found: Prompts, request: CompletionRequest, backend: Backend) -> list[list[int]]:
    last = prompt_tokens_kept(request, backend.limits)
    if not is_text(found):
        ids = cast("list[list[int]]", found)
        return ids if last is None else [one[-last:] for one in ids]
    special = request.add_special_tokens is not False
    with lower.about("prompt"):
        return await backend.encode(cast("list[str]", found), add_special_tokens=special, last=last)


async def _submissions(
    request: CompletionRequest, ids: list[list[int]], n: int, backend: Backend, draw_seed: lower.DrawSeed
) -> list[Submission]:
    """The choices of all prompts: those of prompt i are at i * n to i * n + n - 1.

    None at all for an echo alone; if that is to be scored, one token is generated, which nobody sees.
    """
    choices: list[Submission] = []
    model, limits, banned = backend.model, backend.limits, await lower.bad_words(request, backend)
    for prompt_ids in ids:
        room = lower.check_prompt(prompt_ids, "prompt", model.vocab_size, limits)
        length, scored = max_tokens(request, room), prompt_logprobs(request)
        if length or scored is not None:
            wanted = lower.Wanted(max(length, 1), request.logprobs, scored)
            choices += lower.submissions(
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
    return choices


def _format(request: CompletionRequest, ids: list[list[int]], n: int, backend: Backend) -> CompletionFormat | None:
    if request.logprobs is None:
        return None
    skip = request.skip_special_tokens is not False
    firsts = [prompt_ids[0] for prompt_ids in ids for _ in range(n)] if request.echo else []
    return CompletionFormat(vocabulary(backend, skip_special_tokens=skip), len(ids) * n, firsts)


async def _echoes(
    found: Prompts, ids: list[list[int]], n: int, request: CompletionRequest, backend: Backend
) -> list[str]:
    """What the model sees of each prompt: its text, or that of its tokens if it may have been cut."""
    as_given = request.truncate_prompt_tokens is None
    skip, spaces = request.skip_special_tokens is not False, request.spaces_between_special_tokens is not False
    texts = [
        prompt
        if as_given and isinstance(prompt, str)
        else await backend.decode(tokens, skip_special_tokens=skip, spaces_between_special_tokens=spaces)
        for prompt, tokens in zip(found, ids, strict=True)
    ]
    return [text for text in texts for _ in range(n)]
