"""From prompts in the forms that users write them to jobs. Whatever is wrong with one is told before anything runs."""

import hashlib
import operator
import secrets
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from actorlm.api import lower
from actorlm.api.lower_chat import conversation
from actorlm.api.ports import Limits, Submission
from actorlm.api.schema_chat import Message
from actorlm.checkpoint.description import ModelDescription
from actorlm.errors import BadRequest
from actorlm.invalid import fault
from actorlm.offline.batch import Job
from actorlm.params import SamplingParams
from actorlm.text.bad_words import sequences, spellings
from actorlm.text.chat_template import ChatTemplate
from actorlm.text.tokenizer import Tokenizer

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""A text, token ids, {"prompt": text} or {"prompt_token_ids": ids}."""


class Prompted(msgspec.Struct, frozen=True):
    """A prompt's ids, and its text where it came as one."""

    text: str | None
    ids: list[int]


class Preparation:
    """What turns prompts into jobs of one model."""

    def __init__(
        self, model: ModelDescription, tokenizer: Tokenizer, template: ChatTemplate | None, limits: Limits
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._template = template
        self._limits = limits

    def prompted(self, prompt: Prompt, where: str) -> Prompted:
        """A prompt in any form. Raises BadRequest naming `where`."""
        if isinstance(prompt, Mapping):
            prompt = _only_value(prompt, where)
        if isinstance(prompt, str):
            return Prompted(prompt, self._tokenizer.encode(prompt))
        return Prompted(None, _token_ids(prompt, where))

    def rendered(self, messages: Sequence[Message], where: str, /, **options: Any) -> Prompted:
        """A conversation by the model's chat template; `options` are those of its `render`. Raises BadRequest."""
        if self._template is None:
            raise BadRequest(
                f"{where}: {self._model.name} has no chat template; render it yourself, and give a prompt", param=where
            )
        with lower.about(where):
            text = self._template.render(conversation(messages), **options)
        return Prompted(text, self._tokenizer.encode(text, add_special_tokens=False))

    def job(
        self, index: int, request_id: str, prompted: Prompted, params: SamplingParams, *, seed: int, where: str
    ) -> Job:
        """The job of a prompt; `seed` is for parameters without one. Raises BadRequest, or ContextLengthExceeded."""
        room = lower.check_prompt(prompted.ids, where, self._model.vocab_size, self._limits)
        choices = lower.submissions(
            params,
            prompted.ids,
            wanted=lower.Wanted(
                room if params.max_tokens is None else min(params.max_tokens, room),
                params.logprobs,
                params.prompt_logprobs,
            ),
            n=1 if params.n is None else params.n,
            model=self._model,
            banned=self._banned(params.bad_words or ()),
            draw_seed=lambda: seed,
        )
        choices[1:] = map(_without_prompt_logprobs, choices[1:])
        return Job(index=index, request_id=request_id, prompt=prompted.text, prompt_ids=prompted.ids, choices=choices)

    def _banned(self, words: Sequence[str]) -> lower.TokenSequences:
        with lower.about("bad_words"):
            return sequences([self._tokenizer.encode(text, add_special_tokens=False) for text in spellings(words)])


def _without_prompt_logprobs(choice: Submission) -> Submission:
    """The prompt is scored once, with its first choice."""
    sampling = msgspec.structs.replace(choice.sampling, prompt_logprobs=None)
    return msgspec.structs.replace(choice, sampling=sampling)


def _only_value(prompt: Mapping[str, Any], where: str) -> str | Sequence[int]:
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if unknown := sorted(prompt.keys() - {"prompt", "prompt_token_ids"}):
        raise BadRequest(f"{where} has the key {unknown[0]}; it takes prompt or prompt_token_ids", param=where)
    if (text is None) == (ids is None):
        raise BadRequest(f"{where} needs either prompt or prompt_token_ids", param=where)
    if ids is not None:
        return _token_ids(ids, where)
    if not isinstance(text, str):
        raise BadRequest(f"{where}: prompt is a {type(text).__name__}, no text", param=where)
    return text


def _token_ids(ids: Iterable[Any], where: str) -> list[int]:
    try:
        return [operator.index(token) for token in ids]  # of any array, too
    except TypeError:
        raise BadRequest(
            f"{where} is neither a text nor token ids, nor a dict with prompt or prompt_token_ids", param=where
        ) from None


def typed_messages(messages: Sequence[Any], where: str) -> list[Message]:
    """Messages written as dicts. Raises BadRequest naming `where` and the field at fault."""
    try:
        return msgspec.convert(list(messages), list[Message])
    except msgspec.ValidationError as error:
        raise BadRequest(f"{where}{fault(error, messages).message}", param=where) from None
    except TypeError as error:
        raise BadRequest(f"{where}: {error}", param=where) from None


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A single prompt as a list of it; several as they are."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    listed: list[Any] = list(prompts)
    return [listed] if listed and _is_number(listed[0]) else listed


def _is_number(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def conversations(messages: Sequence[Any]) -> list[Sequence[Any]]:
    """A single conversation as a list of it; several as they are."""
    return [messages] if messages and isinstance(messages[0], Mapping) else list(messages)


def prompt_seeds(seed: int | None) -> Callable[[int], int]:
    """The seed of the number-th prompt that brings none: drawn, or a function of (seed, number)."""
    if seed is None:
        return lambda _number: secrets.randbits(63)
    return lambda number: _derived(seed, number)


def _derived(seed: int, number: int) -> int:
    """Other bits than those of a prompt's choices (`api.lower.derived_seed`)."""
    digest = hashlib.sha256(b"prompt" + struct.pack("<qq", seed, number)).digest()
    return int.from_bytes(digest[:8], "little", signed=True)
