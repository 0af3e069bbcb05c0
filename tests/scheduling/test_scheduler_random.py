"""Random arrivals, aborts and resumes in replicas of random size, against the worker that believes nothing."""

from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scheduling_naive import WEIGHTS, NaiveScheduler
from scheduling_replica import VOCABULARY, Replica

from actorlm.config import BLOCK_SIZE
from actorlm.errors import ContextLengthExceeded
from actorlm.messages.frontend import Finish


def some_request(random: Random) -> tuple[list[int], dict]:
    """A prompt that often begins like others, and how it is to go on."""
    family, length = random.randint(1, 3), random.choice([0, 1, 14, 15, 16, 17, 31, 32, 50])
    tail = [random.randrange(VOCABULARY) for _ in range(random.randint(0, 3))]
    max_tokens = random.choice([1, 5, 20, 40, 60, 60])
    return [position * family % VOCABULARY for position in range(length)] + tail or [0], {
        "max_tokens": max_tokens,
        "min_tokens": min(max_tokens, random.choice([0, 0, 3, 30])),
        "ignore_eos": random.random() < 0.7,
        "stop_token_ids": tuple(random.choices(range(VOCABULARY), k=random.choice([0, 0, 1, 2]))),
        "salt": random.choice(["", "", "tenant"]),
        "priority": [-1000, -1, 0, 0, 1][(length + len(tail)) % 5],
        "tenant": list(WEIGHTS)[(length + max_tokens) % 4],
        "prompt_logprobs": 0 if max_tokens == 40 else None,
    }


class AnyReplica(RuleBasedStateMachine):
    """`depth` steps may be in flight, or one a lane. One alone, without prefix cache, a naive scheduler foretells."""

    @initialize(
        num_blocks=st.sampled_from([8, 10, 12, 16, 20, 6, 3, 1]),
        max_num_seqs=st.sampled_from([8, 6, 4, 2, 1]),
        budget=st.sampled_from([64, 256, 48, 16, 7, 2, 1]),
        max_model_len=st.sampled_from([1000, 1000, 1000, 60, 2]),
        prefix_caching=st.booleans(),
        depth=st.sampled_from([1, 1, 2, 2, 3]),
        lanes=st.sampled_from([1, 1, 1, 2, 3]),
        policy=st.sampled_from(["fcfs", "priority"]),
        one_caller=st.booleans(),
    )
    def begin(self, max_model_len, prefix_caching, depth, lanes=1, one_caller=True, **sizes) -> None:
        self.policy = sizes["policy"]
        self.one_caller = one_caller
        self.replica = Replica(
            **sizes, max_model_len=max_model_len, prefix_caching=prefix_caching, eos=(0, 1), lanes=lanes
        )
        self.lanes = lanes
        self.depth = depth if lanes == 1 else lanes
        self.naive = None if prefix_caching or self.depth > 1 else NaiveScheduler(**sizes)
        self.max_prompt = min(max_model_len - 1, sizes["num_blocks"] * BLOCK_SIZE)
        self.ids = 0

    @rule(seed=st.integers(0, 2**32), size=st.sampled_from([8, 1, 3, 12]))
    def add(self, seed, size) -> None:
        """Many come at once. Their shapes hang on a seed: drawn one by one they would mostly be small and alike."""
        random = Random(seed)
        for prompt, options in [some_request(random) for _ in range(size)]:
            self.ids += 1
            if self.policy == "fcfs":
                options["priority"] = 0
            if self.one_caller:
                options["tenant"] = ""
            options["weight"] = WEIGHTS[options["tenant"]]
            if len(prompt) > self.max_prompt:
                with pytest.raises(ContextLengthExceeded):
                    self.replica.add(self.ids, prompt, **options)
                continue
            request = self.replica.add(self.ids, prompt, **options)
            if self.naive:
                self.naive.add(self.ids, len(prompt), request.max_length, options["priority"], options["tenant"])

    @precondition(lambda self: self.replica.scheduler.has_work)
    @rule(data=st.data())
    def abort(self, data) -> None:
        chosen = data.draw(st.sets(st.sampled_from(self.live()), min_size=1, max_size=3))
        assert sorted(self.replica.abort(*chosen, 0, *chosen)) == sorted(chosen)
        self.forget_ended()

    @precondition(lambda self: self.replica.scheduler.has_work)
    @rule(data=st.data(), suspect=st.booleans())
    def resume(self, data, suspect) -> None:
        """The next attempt brings what is known of the last, which may still be in flight; it may be suspect."""
        request_id = data.draw(st.sampled_from(self.live()))
        last = self.replica.requests[request_id]
        self.abort_one(request_id)
        prompt = last.token_ids[: last.prompt_length]
        request = self.replica.add(
            request_id,
            prompt,
            generated=self.replica.outputs[request_id],
            attempt=last.attempt + 1,
            salt=last.cache_salt,
            priority=last.priority,
            tenant=last.tenant,
            weight=last.weight,
            suspect=suspect and self.naive is None,
            **{name: getattr(last.sampling, name) for name in last.sampling.__struct_fields__},
        )
        assert request.token_ids == last.token_ids
        if self.naive:
            known, most = len(request.token_ids), request.max_length
            self.naive.add(request_id, known, most, request.priority, request.tenant, resumes=True)

    @rule()
    def plan(self) -> None:
        if len(self.replica.in_flight) == self.depth:
            return
        scheduler = self.replica.scheduler
        was_alone = not self.replica.in_flight
        waiting_before, decodes = scheduler.waiting, {r.id for r in scheduler._running if r.num_unscheduled <= 1}
        plan = self.replica.start_step()
        if plan is None:
            return
        if any(request.is_suspect for request in plan.requests):
            assert was_alone, "a suspect is computed while another step is in flight"
            assert len(plan.requests) == 1, "a suspect is computed with others"
            return
        assert not any(step.requests[0].is_suspect for step, _ in list(self.replica.in_flight)[:-1])
        self.check_policy(plan, waiting_before, decodes)
        if self.naive:
            starts_and_counts = zip(plan.starts, plan.counts, strict=True)
            rows = dict(zip([request.id for request in plan.requests], starts_and_counts, strict=True))
            assert rows == self.naive.plan()
            assert self.replica.scheduler.num_preemptions == self.naive.preemptions

    @rule()
    def apply(self) -> None:
        if not self.replica.in_flight:
            return
        self.replica.end_step()
        self.forget_ended()

    @rule(steps=st.sampled_from([20, 5, 2, 50]))
    def go_on(self, steps) -> None:
        for _ in range(steps):
            self.plan()
            self.apply()

    @invariant()
    def books_are_in_order(self) -> None:
        self.replica.scheduler.check()
        assert sorted(self.live()) == sorted(self.replica.request_ids)

    def teardown(self) -> None:
        """Nothing new comes: the oldest moves in every step, so all end within the sum of their lengths."""
        bound = sum(self.replica.requests[request_id].max_length for request_id in self.live())
        while self.replica.in_flight:
            self.apply()
        steps_before = self.replica.num_steps
        while self.replica.scheduler.has_work:
            self.go_on(1)
            assert self.replica.num_steps - steps_before <= bound
        self.replica.check_idle()
        self.replica.add(-1, list(range(self.max_prompt)), max_tokens=1)
        self.replica.run()
        assert self.replica.finishes[-1] in (Finish.STOP, Finish.LENGTH)
        self.replica.check_idle()

    def live(self) -> list[int]:
        return [request_id for request_id in self.replica.requests if request_id not in self.replica.finishes]

    def abort_one(self, request_id: int) -> None:
        assert self.replica.abort(request_id) == [request_id]
        self.forget_ended()

    def forget_ended(self) -> None:
        if self.naive:
            for request_id in list(self.naive.requests):
                known = len(self.replica.requests[request_id].token_ids)
                if request_id in self.replica.finishes:
                    self.naive.end(request_id, known)
                else:
                    self.naive.requests[request_id].known = known

    def check_policy(self, plan, waiting_before: int, decodes: set[int]) -> None:
        """What holds with any cache and depth: decodes all move, no token is left over, nobody is bypassed.

        Of lanes, each has its share of the decodes at most.
        """
        scheduler = self.replica.scheduler
        rows = {request.id for request in plan.requests}
        if self.lanes > 1:
            entered = {added.slot for added in plan.added}
            decoding = {r.id for r in plan.requests if r.slot not in entered} & decodes
            assert len(decoding) <= -(-len(decodes) // self.lanes)
            assert all(r.num_pending <= 1 for r in plan.requests), "a lane looks ahead"
        elif len(self.replica.in_flight) == 1:
            idle = [r for r in scheduler._running if r.id not in rows]
            assert all(r.num_unscheduled > 1 for r in idle), "a decode was left out"
            assert not idle or sum(plan.counts) == self.replica.budget, "tokens are left over"
        running = [r.rank for r in scheduler._running]
        waiting = [r.rank for r in scheduler._waiting if r.charged_at or r.attempt]
        if self.policy == "fcfs" and running and waiting:
            assert max(running) < min(waiting)
        assert scheduler.waiting - waiting_before <= len(plan.released)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("one_caller", [True, False])
def test_a_crowded_replica_does_what_the_naive_scheduler_foretells(seed, policy, one_caller):
    random = Random(seed)
    machine = AnyReplica()
    machine.begin(
        num_blocks=random.randint(10, 14),
        max_num_seqs=8,
        budget=random.choice([20, 40, 64]),
        max_model_len=1000,
        prefix_caching=False,
        depth=1,
        policy=policy,
        one_caller=one_caller,
    )
    for _ in range(60):
        machine.add(random.random(), 3)
        machine.go_on(random.randint(0, 25))
        if random.random() < 0.3 and machine.live():
            machine.abort_one(random.choice(machine.live()))
        machine.books_are_in_order()
    assert machine.naive.preemptions > 2
    machine.teardown()


AnyReplica.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyReplica = AnyReplica.TestCase
