"""Everything that the HTTP face may ask of its process: the frontend's table, and the text of prompts.

Implements `api.ports.Backend`. Long texts are tokenized on a thread, so that no stream waits for them.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import structlog

from actorlm.actors.frontend import Frontend
from actorlm.actors.generation import Generation
from actorlm.api.ports import Envelope, Limits, Rendering, Submission
from actorlm.checkpoint.description import ModelDescription
from actorlm.errors import BadRequest, ContextLengthExceeded
from actorlm.messages.actor import TreeState
from actorlm.text.chat_template import ChatTemplate
from actorlm.text.incremental import incremental
from actorlm.text.tokenizer import Tokenizer

SHORT_CHARACTERS = 4096
"""Texts up to this length are tokenized at once: a thread costs more."""

T = TypeVar("T")

log = structlog.get_logger(__name__)


class ServingBackend:
    """The frontend actor, a tokenizer and a chat template as one backend."""

    def __init__(
        self,
        frontend: Frontend,
        model: ModelDescription,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        max_choices: int,
        replicas: int = 1,
    ) -> None:
        self._frontend = frontend
        self._tokenizer = tokenizer
        self._template = template
        self._max_choices = max_choices
        self._replicas = replicas
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="text")
        self.model = model
        self.served_name = model.name
        self.created = int(time.time())

    @property
    def state(self) -> TreeState:
        """See `api.ports.Backend`."""
        return self._frontend.state

    @property
    def limits(self) -> Limits:
        """See `api.ports.Backend`."""
        longest, capacity = self.model.max_model_len, self._frontend.kv_capacity_tokens
        if capacity:  # the last token is never computed: a sequence may be one token longer than the cache
            longest = min(longest, capacity + 1)
        return Limits(context=longest, max_choices=self._max_choices, replicas=self._replicas)

    def submit(self, submissions: Sequence[Submission], envelope: Envelope) -> Generation:
        """See `api.ports.Backend`."""
        return self._frontend.submit(submissions, envelope)

    async def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool, last: int | None = None
    ) -> list[list[int]]:
        """See `api.ports.Backend`."""
        if last is None:
            for text in texts:
                self._check_length(text)

        def work() -> list[list[int]]:
            return [self._encode(text, add_special_tokens, last) for text in texts]

        return await self._run(work, sum(map(len, texts)))

    def _encode(self, text: str, add_special_tokens: bool, last: int | None) -> list[int]:
        if last is None:
            self._check_length(text)
            return self._tokenizer.encode(text, add_special_tokens)
        return self._tokenizer.encode_end(text, last, add_special_tokens)

    async def decode(
        self, ids: Sequence[int], *, skip_special_tokens: bool, spaces_between_special_tokens: bool
    ) -> str:
        """See `api.ports.Backend`."""

        def work() -> str:
            if spaces_between_special_tokens:
                return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
            stream = incremental(
                self._tokenizer,
                context_ids=(),
                skip_special_tokens=skip_special_tokens,
                spaces_between_special_tokens=False,
            )
            return stream.push(ids) + stream.flush()

        return await self._run(work, len(ids))

    def token_bytes(self, token_id: int, *, skip_special_tokens: bool) -> bytes:
        """See `api.ports.Backend`."""
        return self._tokenizer.bytes_of(token_id, skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str:
        """See `api.ports.Backend`."""
        return self._tokenizer.token(token_id)

    async def render_chat(self, messages: Sequence[dict[str, Any]], rendering: Rendering) -> list[int]:
        """See `api.ports.Backend`."""
        template = self._template
        if template is None:
            raise BadRequest(f"{self.served_name} has no chat template; use /v1/completions", param="messages")
        if ignored := template.without_effect(rendering.variables):
            log.debug("variables without effect", variables=ignored)

        def work() -> list[int]:
            text = template.render(
                messages,
                documents=rendering.documents,
                add_generation_prompt=rendering.add_generation_prompt,
                continue_final_message=rendering.continue_final_message,
                variables=rendering.variables,
            )
            return self._encode(text, rendering.add_special_tokens, rendering.last)

        if rendering.documents or rendering.variables:  # nobody knows how much text a template makes of these
            return await self._off_the_loop(work)
        return await self._run(work, _size(messages))

    async def metrics(self) -> bytes:
        """See `api.ports.Backend`."""
        return await self._frontend.metrics()

    async def _run(self, work: Callable[[], T], size: int) -> T:
        return work() if size <= SHORT_CHARACTERS else await self._off_the_loop(work)

    async def _off_the_loop(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _check_length(self, text: str) -> None:
        """Every token stands for at most so many bytes, so a text that is too long is known before it is tokenized."""
        least = len(text) // self._tokenizer.longest_token
        if least >= self.model.max_model_len:
            raise ContextLengthExceeded(
                f"the prompt has {len(text)} characters, at least {least} tokens; this model's context is"
                f" {self.model.max_model_len} tokens",
            )


def _size(value: Any) -> int:
    """About how much a template has to write of JSON, up to more than SHORT_CHARACTERS."""
    size, left = 0, [value]
    while left and size <= SHORT_CHARACTERS:
        match left.pop():
            case str() as text:
                size += len(text)
            case dict() as table:
                left += [*table, *table.values()]
            case list() | tuple() as row:
                left += row
        size += 1
    return size
