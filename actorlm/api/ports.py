"""What the API needs of the process that it runs in. The frontend implements it; tests have a fake one.

Nothing here knows HTTP, and nothing in the API knows more of the rest of the process than this.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, Self

import msgspec

from actorlm.api.callers import ANYBODY, Caller
from actorlm.api.schema import Usage
from actorlm.checkpoint.description import ModelDescription
from actorlm.logprobs import Scores
from actorlm.messages.actor import TreeState
from actorlm.messages.frontend import Finish
from actorlm.messages.operator import OrderEnded, OrderProgressed, TreeDescribed
from actorlm.messages.supervisor import Order
from actorlm.sampling import SamplingParams
from actorlm.wire import Int32, read_int32

FinishReason = Literal["stop", "length"]
FINISH_REASONS: dict[Finish, FinishReason] = {
    Finish.STOP: "stop",
    Finish.STOP_STRING: "stop",
    Finish.LENGTH: "length",
}


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """One choice to generate. `stop` strings end it; `include_stop` keeps the one that did in the text.

    A lower `priority` goes first. Only requests of the same `cache_salt` share prefixes.
    """

    prompt_ids: list[int]
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    priority: int = 0
    cache_salt: str = ""


class Placement(msgspec.Struct, frozen=True):
    """Where a request wants to run: where its `session` was, if it has one, or at the replica of this number."""

    session: str = ""
    replica: int | None = None


ANYWHERE = Placement()


class Envelope(msgspec.Struct, frozen=True):
    """What comes with a request beside its body: its id for the log, where it wants to run, who asks, and how long.

    `timeout_s` is the time after which it is to end with an error, if it has not ended; None asks for no such time.
    """

    request_id: str = ""
    placement: Placement = ANYWHERE
    caller: Caller = ANYBODY
    timeout_s: float | None = None


class Rendering(msgspec.Struct, frozen=True, kw_only=True):
    """How a conversation becomes a prompt.

    It ends where the assistant begins to speak (`add_generation_prompt`), or with the content of its last message
    (`continue_final_message`). `variables` are the template's, beside `documents`. `last` is how many tokens are kept,
    at most.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    documents: Sequence[Mapping[str, Any]] | None = None
    variables: Mapping[str, Any] = {}
    add_special_tokens: bool = False
    last: int | None = None


ID_BYTES = 4
"""Bytes of a token id in a column."""


class Delta(msgspec.Struct, frozen=True, gc=False):
    """What one choice gained. `choice` is its index among the submissions.

    `text` may be empty while a character or a possible stop string is incomplete. `tokens` counts the new token ids.
    `finish` is set in the last delta of a choice. `cached_tokens` counts the prompt tokens that came from the prefix
    cache, the same in each delta of a choice. `ids` are the new ids, a column, because a slow reader may let many
    gather; `scores` are the log-probabilities that were asked for.
    """

    choice: int
    text: str
    tokens: int
    finish: FinishReason | None = None
    cached_tokens: int = 0
    ids: Int32 = b""
    scores: Scores | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The new ids."""
        return tuple(read_int32(self.ids))

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        return len(self.text) + len(self.ids) + (0 if self.scores is None else self.scores.size)


class Generation(Protocol):
    """All choices of one request being generated, as an asynchronous iterator.

    Each item holds what is new since the last one, at most one delta a choice, so that a slow reader costs memory in
    proportion to the text. It stops after the last choice's finish, or after `abort`; a failure raises ActorlmError.
    """

    def __aiter__(self) -> Self:
        """Itself."""

    async def __anext__(self) -> Sequence[Delta]:
        """Waits for the next deltas; never empty."""

    def read_on(self) -> None:
        """A part of what was taken has been read by the client. Whoever takes much says so now and then."""

    def abort(self) -> None:
        """Ends every choice that goes on, and a waiting `__anext__`. Idempotent; also right after the end."""


class Limits(msgspec.Struct, frozen=True):
    """What one request may ask for. `context` is the most tokens of prompt and output that a replica can hold.

    `replicas` is how many replicas the tree has when all are well.
    """

    context: int
    max_choices: int
    replicas: int = 1


class Backend(Protocol):
    """The rest of the process."""

    @property
    def model(self) -> ModelDescription:
        """The model that is served."""

    @property
    def served_name(self) -> str:
        """What clients call it."""

    @property
    def created(self) -> int:
        """Unix time of the service's start."""

    @property
    def state(self) -> TreeState:
        """What the whole tree can do now."""

    @property
    def limits(self) -> Limits:
        """Of requests that begin now; what the replicas can hold may change."""

    def submit(self, submissions: Sequence[Submission], envelope: Envelope) -> Generation:
        """Begins to generate. Raises Unavailable or Overloaded; so may the first `__anext__`."""

    async def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool, last: int | None = None
    ) -> list[list[int]]:
        """The token ids of each text, computed off the event loop; with `last` at most so many, those at the end.

        Without `last` raises ContextLengthExceeded, before it tokenizes, for a text too long to fit in any case.
        """

    async def decode(
        self, ids: Sequence[int], *, skip_special_tokens: bool, spaces_between_special_tokens: bool
    ) -> str:
        """The text of token ids."""

    def token_bytes(self, token_id: int, *, skip_special_tokens: bool) -> bytes:
        """The bytes that one token stands for; none for a special token that is skipped."""

    def token(self, token_id: int) -> str:
        """One token as the vocabulary spells it."""

    async def render_chat(self, messages: Sequence[dict[str, Any]], rendering: Rendering) -> list[int]:
        """The token ids of a conversation, computed off the event loop.

        Each message has `role` and `content` (text), and may have `name`, `tool_calls` and `tool_call_id`. Raises as
        `encode` does, and BadRequest with what the model's template says against the conversation.
        """

    async def metrics(self) -> bytes:
        """All metrics of the tree in Prometheus' text format."""


class Operations(Protocol):
    """What an operator may ask of the whole tree."""

    async def describe(self) -> TreeDescribed:
        """All actors. Raises Unavailable if the supervisor does not answer."""

    async def order(self, order: Order) -> OrderProgressed | OrderEnded:
        """Gives an order, and returns the first that is said of it. Raises Unavailable as `describe`."""


class Count(Protocol):
    """What the choices of one request come to."""

    def add(self, delta: Delta) -> None:
        """Counts a delta."""

    def usage(self) -> Usage:
        """Of all deltas so far."""


class Begun(Protocol):
    """A request that was accepted. Whoever takes it reads the generation, counts, and aborts it in the end."""

    @property
    def generation(self) -> Generation:
        """Its choices."""

    @property
    def tally(self) -> Count:
        """Counts nothing by itself."""


class Direct(Protocol):
    """The generating routes for callers that bring no HTTP. Each raises the error that the route would answer."""

    async def complete(
        self,
        body: bytes,
        trace_id: str,
        session: str = "",
        replica: int | None = None,
        timeout_s: float | None = None,
    ) -> Begun:
        """What `POST /v1/completions` does with this body."""

    async def chat(
        self,
        body: bytes,
        trace_id: str,
        session: str = "",
        replica: int | None = None,
        timeout_s: float | None = None,
    ) -> Begun:
        """What `POST /v1/chat/completions` does with this body."""
