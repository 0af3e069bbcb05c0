"""What offline generation returns, in the shape that vLLM's users know."""

import msgspec

from actorlm.api.ports import FinishReason


class CompletionOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One choice. `token_ids` has every generated id, one that ended it too.

    `stop_reason` is the stop string, or the id among `stop_token_ids`, that ended it; None for the model's own end of
    text and for a length.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None = None


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and all its choices. `prompt` is None for one that came as ids; a chat's is the rendered text.

    `num_cached_tokens` counts the prompt tokens that came from the prefix cache when its first choice began.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    finished: bool = True
