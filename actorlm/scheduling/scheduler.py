"""The scheduler of one replica: which tokens of which requests the next step computes, and in which KV blocks.

Owns: all requests of the replica, its slots, its blocks. Takes requests and aborts, makes plans, and is told the tokens
that a step sampled. Must not know: time, sockets, tensors, how many devices there are. The policy is told in policy.py.

Every plan that is made must be applied, in order. Several may be in flight: a request then runs ahead of its known
tokens, and one that ends keeps its slot and blocks until the last step that uses them has been applied. What a step
samples of a request that has ended meanwhile is dropped.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence, ValuesView
from typing import NamedTuple

from actorlm.config import BLOCK_SIZE, SchedulerConfig
from actorlm.errors import BadRequest, ProtocolError
from actorlm.messages.frontend import Finish
from actorlm.scheduling.admission import check_admissible, check_room
from actorlm.scheduling.blocks import BlockPool, blocks_for
from actorlm.scheduling.fairness import FairQueue
from actorlm.scheduling.line import Line
from actorlm.scheduling.load import Load, measure
from actorlm.scheduling.plan import StepPlan
from actorlm.scheduling.policy import Shares, may_enter, urgency
from actorlm.scheduling.prefix import PrefixCache
from actorlm.scheduling.request import Request, State
from actorlm.scheduling.seats import Seats


class Sampled(NamedTuple):
    """A request's new token, and whether the request ended with it. `apply` gives each a token."""

    request: Request
    token: int | None
    finish: Finish


class Scheduler:
    """Plans the steps of one replica whose KV cache has `num_blocks` blocks of BLOCK_SIZE tokens.

    `eos_token_ids` end a request, unless it ignores them. With more than one of `lanes`, the stages of a pipeline, so
    many steps are computed at the same time: they share the decodes, and none looks ahead of a token (policy.py).
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        num_blocks: int,
        max_model_len: int,
        eos_token_ids: tuple[int, ...],
        prefix_caching: bool,
        lanes: int = 1,
    ) -> None:
        self._config = config
        self._max_model_len = max_model_len
        self.eos_token_ids = eos_token_ids
        self._lanes = lanes
        self._pool = BlockPool(num_blocks)
        self._prefix = PrefixCache(self._pool) if prefix_caching else None
        self._max_running = config.max_running
        self._requests: dict[int, Request] = {}
        self._waiting = FairQueue()
        self._running: Line[Request] = Line()
        self._seats = Seats(config.max_num_seqs, self._pool)
        self._in_flight: deque[StepPlan] = deque()
        self._suspects: set[Request] = set()
        self._steps = 0
        self.num_preemptions = 0

    @property
    def running(self) -> int:
        """Requests that hold a slot and go on."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot or blocks, preempted ones too."""
        return len(self._waiting)

    @property
    def waiting_tokens(self) -> int:
        """Their known tokens."""
        return self._waiting.tokens

    @property
    def requests(self) -> ValuesView[Request]:
        """All requests that have not ended."""
        return self._requests.values()

    @property
    def has_work(self) -> bool:
        """Whether a request is left that has not ended."""
        return bool(self._requests)

    @property
    def steps_in_flight(self) -> int:
        """Plans that were made and not applied."""
        return len(self._in_flight)

    @property
    def may_plan(self) -> bool:
        """Whether another step in flight is of use: one for each lane or, with one lane, one that looks ahead.

        Nothing is planned behind a lone step of newcomers: whoever arrives while it runs shall be in the next one.
        """
        flying = self._in_flight
        if not flying or self._lanes > 1:
            return len(flying) < self._lanes
        return self._config.async_scheduling and len(flying) == 1 and not flying[0].is_all_new

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that all blocks together hold."""
        return self._pool.num_blocks * BLOCK_SIZE

    @property
    def kv_used_tokens(self) -> int:
        """Tokens that the blocks in use hold; cached blocks that nobody uses do not count."""
        return self._pool.num_used * BLOCK_SIZE

    @property
    def load(self) -> Load:
        """What is left to do. Takes a fraction of a microsecond for each request."""
        return measure(self._running, self._waiting, self.kv_used_tokens)

    @property
    def prefix_queries(self) -> int:
        """Tokens of all requests that were looked up in the prefix cache."""
        return self._prefix.queries if self._prefix else 0

    @property
    def prefix_hits(self) -> int:
        """Tokens of those that were found."""
        return self._prefix.hits if self._prefix else 0

    def add(self, request: Request) -> None:
        """Accepts a request, which from now on ends exactly once: in `apply`, or in `abort`.

        Raises BadRequest for an id that has not ended yet and for what cannot be served, ContextLengthExceeded for what
        can never fit, and Overloaded when too much waits (`check_room`). A request that resumes is not too much: it was
        accepted before.
        """
        if request.id in self._requests:
            raise BadRequest(f"request {request.id} has not ended yet; abort it before its next attempt")
        capacity = self.kv_capacity_tokens
        check_admissible(
            request,
            max_model_len=self._max_model_len,
            kv_capacity_tokens=capacity,
            policy=self._config.scheduling_policy,
        )
        if request.attempt == 0:
            free_slots = self._max_running - self.running
            free_tokens = capacity - self.kv_used_tokens if free_slots else 0
            check_room(request, self._waiting, self._config, free_slots=free_slots, free_tokens=free_tokens)
        # The last token is never computed: a sequence may be one token longer than the cache.
        request.limit(self.eos_token_ids, min(self._max_model_len, capacity + 1))
        self._requests[request.id] = request
        policy = self._config.scheduling_policy
        self._waiting.add(request, urgency(policy, priority=request.priority, step=self._steps))
        if request.is_suspect:
            self._suspects.add(request)

    def abort(self, request_ids: Iterable[int]) -> list[int]:
        """Ends requests in whatever phase they are; returns those that ended now. Unknown ids have ended before."""
        ended = [request_id for request_id in dict.fromkeys(request_ids) if request_id in self._requests]
        for request_id in ended:
            self._end(self._requests[request_id])
        return ended

    def plan(self) -> StepPlan | None:
        """The next step, or None when there is nothing to compute now. With none in flight, None means no work."""
        step = StepPlan(self._steps)
        suspect = self._suspect()
        if suspect is None:
            self._plan_prefills(step, self._plan_decodes(step))
        elif not self._in_flight:
            self._plan_trial(step, suspect)
        if not step.requests:
            return None
        step.released = self._seats.released()
        self._steps += 1
        self._in_flight.append(step)
        return step

    def _suspect(self) -> Request | None:
        """Who has to be computed alone now, if somebody has. One that cannot enter yet waits as others do."""
        if not self._suspects:
            return None
        for request in self._running:
            if request in self._suspects:
                return request
        return first if self._suspect_is_next and self._can_enter(first := self._waiting.first) else None

    @property
    def _suspect_is_next(self) -> bool:
        return bool(self._suspects and self._waiting) and self._waiting.first in self._suspects

    def _plan_trial(self, step: StepPlan, suspect: Request) -> None:
        """The suspect's next tokens and nothing else."""
        if suspect.state is not State.RUNNING:
            self._admit(step)
        shares = Shares(self._config.max_num_batched_tokens)
        self._ask(shares, suspect)
        step.add_row(suspect, *shares.settle())

    def _plan_decodes(self, step: StepPlan) -> list[Request]:
        """Gives each running decode its row, and returns the prefills, the first in line first."""
        prefills: list[Request] = []
        left, stalled = self._decodes_of_a_step(), False
        for request in list(self._running):
            if request.state is not State.RUNNING or (stalled and request is self._running.last):
                break  # one before it has taken its blocks, and those of all after it, or waits for them
            unscheduled = request.num_unscheduled
            if unscheduled > 1:
                prefills.append(request)
            elif unscheduled == 1 and left and self._may_follow(request):
                if self._has_room(request, step):
                    step.add_row(request, 1)
                    left -= 1
                else:
                    stalled = True
        return prefills

    def _decodes_of_a_step(self) -> int:
        """All, or a lane's share of them."""
        if self._lanes == 1:
            return self.running
        return -(-sum(request.num_unscheduled <= 1 for request in self._running) // self._lanes)

    def _may_follow(self, request: Request) -> bool:
        """Whether a step may look ahead of the request's pending tokens, if it has any."""
        return self._lanes == 1 or not request.num_pending

    def _has_room(self, request: Request, step: StepPlan) -> bool:
        """Whether the request has a block for its next token, after having got one if it needs one."""
        if request.num_scheduled < len(request.blocks) * BLOCK_SIZE:
            return True
        if not self._make_free(request):
            return False
        blocks = self._pool.take(1)
        request.blocks += blocks
        step.add_blocks(request, blocks)
        return True

    def _make_free(self, request: Request) -> bool:
        """Preempts the last in line until a block is free. False if that is this one, or a step in flight uses it."""
        while self._pool.num_free == 0:
            last = self._running.last
            if last.steps_in_flight or self._seats.is_left:
                return False
            self._preempt(last)
            if last is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        request.move(State.PREEMPTED)
        self._seats.vacate(request)
        self._running.remove(request)
        self._waiting.put_back(request)
        self.num_preemptions += 1
        request.num_preemptions += 1

    def _plan_prefills(self, step: StepPlan, prefills: list[Request]) -> None:
        """Divides the tokens that decodes have left among running prefills and those it admits."""
        shares = Shares(self._config.max_num_batched_tokens - len(step.requests))
        for request in prefills:
            self._ask(shares, request)
        while shares.left and not self._suspect_is_next and (admitted := self._admit(step)):
            prefills.append(admitted)
            self._ask(shares, admitted)
        for request, count in zip(prefills, shares.settle(), strict=True):
            if count:
                step.add_row(request, count)

    def _ask(self, shares: Shares, request: Request) -> None:
        """Asks for the request's tokens. What it is sure to get, those behind it in the same step may share."""
        granted = shares.ask(request.num_unscheduled, scored=request.scores_prompt)
        if self._prefix:
            self._prefix.offer(request, request.num_scheduled + granted)

    def _admit(self, step: StepPlan) -> Request | None:
        """Lets the head of the queue enter a slot, with blocks for all its known tokens. None if it has to wait."""
        if not self._waiting or not self._can_enter(request := self._waiting.first):
            return None
        cached = self._cached(request)
        self._count_hits(request, len(cached) * BLOCK_SIZE)
        self._seats.take(request, cached, blocks_for(len(request.token_ids)) - len(cached))
        self._waiting.enter(request)
        self._running.add(request)
        step.add_request(request)
        return request

    def _can_enter(self, request: Request) -> bool:
        """Whether there are a slot and blocks for it."""
        if not self._seats.has_free or self.running >= self._max_running:
            return False
        cached = self._cached(request)
        taken = blocks_for(len(request.token_ids)) - len(cached) + self._pool.count_idle(cached)
        return may_enter(blocks=taken, free=self._pool.num_free, running=self.running)

    def _cached(self, request: Request) -> list[int]:
        """Blocks that hold its beginning."""
        return self._prefix.match(request) if self._prefix and not request.scores_prompt else []

    def _count_hits(self, request: Request, cached: int) -> None:
        """Preempted requests find what they computed themselves; that is no saving."""
        if self._prefix and request.state is State.WAITING and not request.scores_prompt:
            self._prefix.queries += len(request.token_ids)
            self._prefix.hits += cached
            request.num_cached = min(cached, request.prompt_length)

    def apply(self, plan: StepPlan, tokens: Sequence[int]) -> list[Sampled]:
        """Takes in what the oldest step in flight sampled: one token for each entry of `plan.sampled`.

        Returns the tokens of requests that have not been aborted meanwhile. Raises ProtocolError for a wrong number.
        """
        if len(tokens) != len(plan.sampled):
            raise ProtocolError(f"step {plan.step} returned {len(tokens)} tokens; it sampled {len(plan.sampled)}")
        assert plan is self._in_flight[0], f"step {plan.step} is applied out of order"
        self._in_flight.popleft()
        self._note_computed(plan)
        requests = plan.requests
        return [
            self._learn(requests[row], token)
            for row, token in zip(plan.sampled, tokens, strict=True)
            if requests[row].state is State.RUNNING
        ]

    def _note_computed(self, plan: StepPlan) -> None:
        for request, count in zip(plan.requests, plan.counts, strict=True):
            request.steps_in_flight -= 1
            request.num_computed += count
            if request.state is State.LEAVING:
                self._seats.settle(request)
            elif self._prefix and request.num_computed >= (request.num_shareable + 1) * BLOCK_SIZE:
                self._prefix.offer(request, request.num_computed)

    def _learn(self, request: Request, token: int) -> Sampled:
        finish = request.learn(token)
        self._suspects.discard(request)
        if finish is not Finish.NOT_YET:
            self._end(request)
        return Sampled(request, token, finish)

    def _end(self, request: Request) -> None:
        """The request has ended for everybody outside; what a step in flight uses is kept for it."""
        del self._requests[request.id]
        self._suspects.discard(request)
        if request.state is not State.RUNNING:
            self._waiting.leave(request)
            request.move(State.FINISHED)
            return
        self._running.remove(request)
        self._waiting.ended(request)
        self._seats.end(request)

    def check(self) -> None:
        """Proves the accounts of blocks, slots and queues. Raises AssertionError."""
        seated = self._seats.check(self._running)
        in_line = [*self._running, *self._waiting]
        assert self._requests.keys() == {request.id for request in in_line}, "a request is lost"
        assert self.running + self.waiting == len(self._requests), "a request waits and runs"
        assert self.running <= self._max_running, f"{self.running} run"
        self._check_order([request.rank for request in self._running])
        self._waiting.check()
        for request in self._waiting:
            assert request.state in (State.WAITING, State.PREEMPTED), request
            assert (request.state is State.PREEMPTED) == (request.charged_at > 0), request
            assert not request.blocks, request
        in_flight = Counter(request for step in self._in_flight for request in step.requests)
        assert in_flight.keys() <= set(seated), "a step in flight has a request without a slot"
        for request in seated:
            self._check_seated(request, in_flight[request])

    def _check_order(self, running: list[tuple[int, int]]) -> None:
        assert running == sorted(running), f"not in line: {running}"
        preempted = [request.rank for request in self._waiting if request.state is State.PREEMPTED]
        bypassed = self._config.scheduling_policy == "fcfs" and running and preempted and running[-1] > preempted[0]
        assert not bypassed, f"not in order of entry: {running} run, {preempted} wait"

    def _check_seated(self, request: Request, in_flight: int) -> None:
        assert in_flight == request.steps_in_flight, request
        assert request.state is State.RUNNING or in_flight, request
        assert request.num_computed <= request.num_scheduled <= len(request.blocks) * BLOCK_SIZE, request
        assert request.num_scheduled <= len(request.token_ids) + request.num_pending, request
        assert in_flight or (request.num_computed == request.num_scheduled and not request.num_pending), request
