"""What a replica has left to do, at each point of a request's life."""

from scheduling_replica import generate

from actorlm.config import SchedulerConfig
from actorlm.scheduling.load import DECODE_COST, HORIZON, Load, near, work
from actorlm.scheduling.request import Request
from actorlm.scheduling.scheduler import Scheduler


def test_the_near_future_counts():
    assert [near(tokens) for tokens in (0, 5, HORIZON, 10**6)] == [0, 5, HORIZON, HORIZON]
    assert work(100, 10) == 100 + 10 * DECODE_COST


def test_a_request_counts_less_and_less():
    config = SchedulerConfig(max_num_batched_tokens=20, max_num_seqs=1)
    scheduler = Scheduler(config, num_blocks=16, max_model_len=256, eos_token_ids=(), prefix_caching=False)
    for number in range(2):
        scheduler.add(Request.from_generate(generate(number, range(50), max_tokens=3)))
    loads = []
    while scheduler.has_work:
        loads.append(scheduler.load)
        plan = scheduler.plan()
        scheduler.apply(plan, [1] * len(plan.sampled))
    assert loads[:6] == [
        Load(waiting=100, prefill=0, decode=6, kv_used=0),
        Load(waiting=50, prefill=30, decode=6, kv_used=64),
        Load(waiting=50, prefill=10, decode=6, kv_used=64),
        Load(waiting=50, prefill=0, decode=5, kv_used=64),
        Load(waiting=50, prefill=0, decode=4, kv_used=64),
        Load(waiting=50, prefill=0, decode=3, kv_used=0),
    ]
    assert scheduler.load == Load()
