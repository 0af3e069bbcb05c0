"""`SamplingParams` as users write them: names and bounds are those of the HTTP fields, checked by the same types.

They become `actorlm.sampling.SamplingParams`, token ids alone, once a prompt and a model are known (api/lower.py).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from actorlm.api.schema import AtLeastOne, Choosing, TopLogprobs
from actorlm.errors import BadRequest
from actorlm.invalid import fault

DEFAULT_MAX_TOKENS = 16


class Scored(Choosing, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `Choosing` has, and which log-probabilities come with the answer.

    `logprobs` is how many most probable tokens to list at each generated token, `prompt_logprobs` at each token of the
    prompt.
    """

    logprobs: TopLogprobs | None = None
    prompt_logprobs: TopLogprobs | None = None


class SamplingParams(Scored, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the tokens of one prompt's `n` choices are chosen, and what ends them. None is a field's default.

    `max_tokens` is cut to the room that the prompt leaves; None takes all of it. `logit_bias` is by token id. `stop`
    is a text or a list of texts.
    """

    max_tokens: AtLeastOne | None = DEFAULT_MAX_TOKENS


def checked(params: Any, where: str) -> SamplingParams:
    """The same parameters, each of its type and within its bounds. Raises BadRequest naming `where` and the field."""
    if not isinstance(params, SamplingParams):
        raise BadRequest(f"{where} is a {type(params).__name__}; it must be actorlm.SamplingParams", param=where)
    fields = msgspec.structs.asdict(params)
    if isinstance(fields["logit_bias"], Mapping):
        fields["logit_bias"] = {str(token): bias for token, bias in fields["logit_bias"].items()}
    try:
        return msgspec.convert(fields, SamplingParams)
    except msgspec.ValidationError as error:
        found = fault(error, fields)
        raise BadRequest(f"{where}: {found.message}", param=found.path) from None
