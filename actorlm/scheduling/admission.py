"""What a replica refuses at once: what is malformed for it, what could never fit, what would wait behind too much."""

from actorlm.config import SchedulerConfig, SchedulingPolicy
from actorlm.errors import BadRequest, ContextLengthExceeded, Overloaded
from actorlm.messages.engine import MAX_PRIORITY
from actorlm.scheduling.fairness import FairQueue
from actorlm.scheduling.request import Request


def check_admissible(
    request: Request, *, max_model_len: int, kv_capacity_tokens: int, policy: SchedulingPolicy
) -> None:
    """Raises BadRequest for what cannot be served, ContextLengthExceeded for what leaves no room for one more token."""
    _check_fields(request)
    _check_priority(request.priority, policy)
    length = len(request.token_ids)
    if length >= max_model_len:
        raise ContextLengthExceeded(
            f"the prompt has {length} tokens{_earlier(request)} and a sequence at most {max_model_len}, prompt and "
            f"output; shorten the prompt to {max_model_len - 1}",
            param="prompt",
        )
    if length > kv_capacity_tokens:
        raise ContextLengthExceeded(
            f"the prompt has {length} tokens{_earlier(request)} and the KV cache holds {kv_capacity_tokens}; "
            "shorten the prompt, or raise kv_cache_tokens",
            param="prompt",
        )


def check_room(
    request: Request, queue: FairQueue, bounds: SchedulerConfig, *, free_slots: int, free_tokens: int
) -> None:
    """Raises Overloaded if too many requests wait, or too many tokens, beyond those that will enter at once.

    A caller that has less than its even part of what may wait is taken in all the same, and so is a request of a caller
    of whom nobody waits: who fills the queue does not close it to others.
    """
    callers, own = queue.callers_with(request.tenant), queue.of(request.tenant)
    if len(queue) >= bounds.max_waiting + free_slots and own.requests >= max(1, bounds.max_waiting // callers):
        raise Overloaded(f"{len(queue)} requests wait and max_waiting is {bounds.max_waiting}; try again later")
    tokens = len(request.token_ids)
    would_wait = own.tokens + tokens > bounds.max_waiting_tokens // callers
    if queue.tokens + tokens > bounds.max_waiting_tokens + free_tokens and would_wait and own.requests:
        raise Overloaded(
            f"{queue.tokens} tokens wait, and with the {tokens} of this request they would be more than"
            f" max_waiting_tokens, {bounds.max_waiting_tokens}; try again later"
        )


def _check_fields(request: Request) -> None:
    if request.prompt_length == 0:
        raise BadRequest("the prompt has no tokens; it needs at least one", param="prompt")
    wanted, generated = request.sampling.max_tokens, request.num_generated
    if generated >= wanted:
        raise BadRequest(f"max_tokens is {wanted} and {generated} are generated: none is left", param="max_tokens")


def _check_priority(priority: int, policy: SchedulingPolicy) -> None:
    if policy == "fcfs" and priority != 0:
        raise BadRequest(
            f"priority is {priority}, and requests run as they arrive; leave it 0, or start the server with"
            " --scheduling-policy priority",
            param="priority",
        )
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise BadRequest(
            f"priority is {priority}; it must lie between {-MAX_PRIORITY} and {MAX_PRIORITY}", param="priority"
        )


def _earlier(request: Request) -> str:
    return f", {request.num_generated} of them generated earlier," if request.num_generated else ""
