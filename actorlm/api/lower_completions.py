"""Text completions' own part of lowering: the forms of a prompt, and lengths."""

from typing import cast

from actorlm.api import lower
from actorlm.api.ports import Limits
from actorlm.api.schema_completions import CompletionRequest
from actorlm.errors import BadRequest

DEFAULT_MAX_TOKENS = 16

Prompts = list[str] | list[list[int]]


def prompts(prompt: str | list[str | int | list[int]]) -> Prompts:
    """A prompt's four forms as a list of texts or a list of lists of ids. Raises BadRequest for a mixture."""
    if isinstance(prompt, str):
        return [prompt]
    if all(isinstance(item, str) for item in prompt):
        return cast("list[str]", prompt)
    if all(isinstance(item, int) for item in prompt):
        return [cast("list[int]", prompt)]
    if all(isinstance(item, list) for item in prompt):
        return cast("list[list[int]]", prompt)
    raise BadRequest("prompt mixes texts, token ids and lists; use one of them", param="prompt")


def is_text(found: Prompts) -> bool:
    """Whether the prompts are texts."""
    return isinstance(found[0], str)


def prompt_logprobs(request: CompletionRequest) -> int | None:
    """How many most probable tokens are wanted in each place of the prompt; None for no log-probabilities of it.

    Raises BadRequest for what is asked of log-probabilities that are not asked for.
    """
    if request.logprobs is None and request.logprob_token_ids:
        raise BadRequest("logprob_token_ids needs logprobs, which may be 0", param="logprob_token_ids")
    return request.logprobs if request.echo else None


def max_tokens(request: CompletionRequest, room: int) -> int:
    """The most tokens of one choice: what was asked for or 16, cut to the room left. 0 means echo alone."""
    if request.max_tokens == 0:
        if not request.echo:
            raise BadRequest("max_tokens is 0; that is allowed only with echo", param="max_tokens")
        return 0
    return min(_asked_tokens(request), room)


def prompt_tokens_kept(request: CompletionRequest, limits: Limits) -> int | None:
    """How many tokens of each prompt are kept, the last ones; None for all. Raises BadRequest for none."""
    return lower.prompt_tokens_kept(request, max(_asked_tokens(request), 1), limits)


def _asked_tokens(request: CompletionRequest) -> int:
    return DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
