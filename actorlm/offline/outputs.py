"""What offline generation returns, in the shape that vLLM's users know."""

import msgspec

from actorlm.api.ports import FinishReason
from actorlm.offline.logprobs import Place


class CompletionOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One choice. `token_ids` has every generated id, one that ended it too.

    `stop_reason` is the stop string, or the id among `stop_token_ids`, that ended it; None for the model's own end of
    text and for a length. `logprobs`, where asked for, has a place for each token, and `cumulative_logprob` their sum.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    cumulative_logprob: float | None = None
    logprobs: list[Place] | None = None


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and all its choices. `prompt` is None for one that came as ids; a chat's is the rendered text.

    `num_cached_tokens` counts the prompt tokens that came from the prefix cache when its first choice began.
    `prompt_logprobs`, where asked for, has a place for each token, and None for the first.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    prompt_logprobs: list[Place | None] | None = None
    finished: bool = True
