"""One attempt of one request, as the scheduler of its replica sees it.

Owns: the token ids known so far, how many of them are scheduled and computed, and the legal moves of its state.
Only the scheduler changes it. "Scheduled" is what left in a plan, "computed" what came back, "pending" the tokens that
are being sampled and are not known yet. Without a step in flight scheduled equals computed and nothing is pending.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from actorlm.errors import BadRequest, ProtocolError
from actorlm.messages.engine import Generate
from actorlm.messages.frontend import Finish
from actorlm.sampling import SamplingParams

NO_SLOT = -1


class State(Enum):
    """Where a request is. LEAVING has ended, but a step in flight still uses its slot and its blocks."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    LEAVING = "leaving"
    FINISHED = "finished"


LEGAL_MOVES: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.RUNNING, State.FINISHED}),
    State.RUNNING: frozenset({State.PREEMPTED, State.LEAVING}),
    State.PREEMPTED: frozenset({State.RUNNING, State.FINISHED}),
    State.LEAVING: frozenset({State.FINISHED}),
    State.FINISHED: frozenset(),
}


@dataclass(slots=True, eq=False)
class Request:
    """`token_ids` are the prompt and all generated ids known so far, those of earlier attempts too.

    `num_cached` counts the prompt tokens that came from the prefix cache when the request first entered a slot.
    """

    id: int
    attempt: int
    frontend: str
    detokenizer: int
    priority: int
    cache_salt: str
    token_ids: "array[int]"
    prompt_length: int
    sampling: SamplingParams
    tenant: str = ""
    weight: float = 1.0
    is_suspect: bool = False
    """Whether it is computed in steps of its own, until it has a token, because replicas may have died of it."""
    trace_id: str = ""
    """What the client calls it, for logs."""

    rank: tuple[int, int] = (0, -1)
    """Its place, the lowest first: among those of its tenant that never ran, then, for life, among those that have."""
    charged_at: int = 0
    """Tokens that were known when it first entered a slot, and its tenant was charged for it; 0 before."""
    state: State = State.WAITING
    slot: int = NO_SLOT
    blocks: list[int] = field(default_factory=list)
    num_scheduled: int = 0
    num_computed: int = 0
    num_pending: int = 0
    num_cached: int = 0
    num_preemptions: int = 0
    steps_in_flight: int = 0

    block_hashes: list[bytes] = field(default_factory=list)
    num_shareable: int = 0
    """Leading blocks that the prefix cache has been offered, or has given."""

    stop_ids: frozenset[int] = frozenset()
    max_length: int = 0
    """Tokens, prompt and output, at which the request ends with LENGTH."""

    @classmethod
    def from_generate(cls, message: Generate) -> Self:
        """The request that a message asks for. Raises BadRequest, and ProtocolError for columns that are no int32."""
        if message.adapter is not None:
            raise BadRequest(f"adapter is {message.adapter!r}; this model is served without adapters", param="adapter")
        prompt = _ids("prompt_ids", message.prompt_ids)
        return cls(
            id=message.request,
            attempt=message.attempt,
            frontend=message.frontend,
            detokenizer=message.detokenizer,
            priority=message.priority,
            cache_salt=message.cache_salt,
            token_ids=prompt + _ids("generated_ids", message.generated_ids),
            prompt_length=len(prompt),
            sampling=message.sampling,
            tenant=message.tenant,
            weight=message.weight,
            is_suspect=message.suspect,
            trace_id=message.trace_id,
        )

    @property
    def num_generated(self) -> int:
        """Output tokens known so far."""
        return len(self.token_ids) - self.prompt_length

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of the prompt are still wanted, so that all of it must be computed.

        With the first generated token they have been delivered.
        """
        return self.sampling.prompt_logprobs is not None and self.num_generated == 0

    @property
    def num_unscheduled(self) -> int:
        """Tokens left for the next plans: 1 in a decode, more in a prefill, 0 if it ends with a token in flight."""
        length = len(self.token_ids) + self.num_pending
        if self.num_pending and length >= self.max_length:
            return 0
        return length - self.num_scheduled

    def move(self, state: State) -> None:
        """Changes the state. Raises AssertionError if the move is not in the table."""
        if state not in LEGAL_MOVES[self.state]:
            raise AssertionError(f"request {self.id} cannot move from {self.state.value} to {state.value}")
        self.state = state

    def limit(self, eos_token_ids: Iterable[int], max_length: int) -> None:
        """Settles when the request ends: `max_length` is the longest sequence, in tokens, that the replica can hold."""
        self.stop_ids = frozenset(self.sampling.stop_token_ids)
        if not self.sampling.ignore_eos:
            self.stop_ids |= frozenset(eos_token_ids)
        self.max_length = min(max_length, self.prompt_length + self.sampling.max_tokens)

    def learn(self, token: int) -> Finish:
        """Appends a sampled token that was pending, and says whether the request ends with it."""
        self.num_pending -= 1
        self.is_suspect = False
        self.token_ids.append(token)
        if token in self.stop_ids and self.num_generated >= self.sampling.min_tokens:
            return Finish.STOP
        return Finish.LENGTH if len(self.token_ids) >= self.max_length else Finish.NOT_YET

    def forget_progress(self) -> None:
        """Nothing of the request is in a slot or a block any more; its token ids and their hashes stay."""
        self.slot = NO_SLOT
        self.blocks = []
        self.num_scheduled = self.num_computed = self.num_shareable = 0


def _ids(name: str, column: bytes) -> "array[int]":
    if len(column) % 4:
        raise ProtocolError(f"{name} has {len(column)} bytes, which is no number of int32 values", param=name)
    return array("i", column)
