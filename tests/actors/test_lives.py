"""What becomes of each request of a replica, in metrics and in lines of the log."""

from structlog.testing import capture_logs

from actorlm.actors.lives import Lives
from actorlm.config import BLOCK_SIZE, SchedulerConfig
from actorlm.errors import BadRequest
from actorlm.messages.engine import Generate
from actorlm.messages.executor import StepDone
from actorlm.metrics import Metrics
from actorlm.sampling import SamplingParams
from actorlm.scheduling.core import Core
from actorlm.scheduling.scheduler import Scheduler
from actorlm.wire import int32


class Clock:
    """A second later each time that a step begins or ends."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Replica:
    def __init__(self, num_blocks=64, **options):
        config = SchedulerConfig(async_scheduling=False, **options)
        scheduler = Scheduler(config, num_blocks=num_blocks, max_model_len=1000, eos_token_ids=(), prefix_caching=True)
        self.metrics, self.clock, self.reports = Metrics(), Clock(), []
        self.core = Core(scheduler, 100, (Lives(3, scheduler, self.metrics, self.reports.append, self.clock),))

    def admit(self, number, prompt=(1, 2, 3), traced=False, **sampling):
        params = SamplingParams(**{"max_tokens": 3, **sampling})
        self.core.admit(Generate(number, 0, "f", 0, int32(prompt), b"", params, trace_id=f"id-{number}", traced=traced))

    def step(self):
        step = self.core.next_step()
        self.clock.now += 1
        self.core.take(step, StepDone(step.plan.step, int32([7] * len(step.plan.sampled)), 0))

    def value(self, metric):
        found = [value for name, labels, value in self.metrics.samples() if name == metric and labels == ("3",)]
        return sum(found)

    def count(self, metric):
        return sum(value for name, labels, value in self.metrics.samples() if name == f"{metric}_bucket")


def of(lines, number):
    return [line["event"] for line in lines if line.get("request_id") == f"id-{number}"]


def test_each_part_of_a_life_is_timed():
    replica = Replica(max_num_seqs=1)
    replica.admit(1)
    replica.admit(2, max_tokens=5)
    with capture_logs() as lines:
        for _ in range(3):
            replica.step()
    assert replica.value("request_queue_time_seconds_sum") == 0
    assert replica.value("request_prefill_time_seconds_sum") == 1
    assert replica.value("request_decode_time_seconds_sum") == 2
    assert replica.value("request_inference_time_seconds_sum") == 3
    assert of(lines, 1) == ["entered slot", "first token", "left"]
    assert lines[-1]["reason"] == "length"
    assert lines[-1]["tokens"] == 3
    for _ in range(5):
        replica.step()
    assert replica.value("request_queue_time_seconds_sum") == 3
    assert replica.value("request_inference_time_seconds_sum") == 3 + 5
    assert replica.value("iteration_tokens_total_sum") == (3 + 2) + (3 + 4)
    assert replica.count("iteration_tokens_total") == 8
    assert replica.value("request_prefill_kv_computed_tokens_sum") == 6
    assert replica.count("request_num_preemptions") == 2


def test_whoever_is_aborted_leaves_once_and_counts_as_far_as_it_came():
    replica = Replica(max_num_seqs=1)
    replica.admit(1)
    replica.admit(2)
    replica.step()
    with capture_logs() as lines:
        assert replica.core.abort([1, 2, 99]) == [1, 2]
        assert replica.core.abort([1, 2]) == []
    assert of(lines, 1) == of(lines, 2) == ["left"]
    assert {line["reason"] for line in lines} == {"abort"}
    assert replica.count("request_queue_time_seconds") == replica.count("request_inference_time_seconds") == 1
    assert replica.count("request_num_preemptions") == 2


def test_a_refusal_is_told_and_starts_no_life():
    replica = Replica()
    with capture_logs() as lines:
        try:
            replica.admit(1, prompt=(1000,))
        except BadRequest as error:
            message = error.message
    assert lines == [{"event": "refused", "log_level": "debug", "request_id": "id-1", "request": 1, "error": message}]
    assert not list(replica.metrics.samples())


def test_preemption_is_told_and_counted():
    replica = Replica(num_blocks=5)
    for number in (1, 2):
        replica.admit(number, prompt=[number] * (2 * BLOCK_SIZE - 2), max_tokens=10)
    with capture_logs() as lines:
        while replica.core.scheduler.has_work:
            replica.step()
    assert of(lines, 1) == ["entered slot", "first token", "left"]
    assert of(lines, 2) == ["entered slot", "first token", "preempted", "entered slot", "left"]
    assert [line["again"] for line in lines if line["event"] == "entered slot"] == [False, False, True]
    assert replica.value("request_num_preemptions_sum") == 1


def test_the_times_of_a_traced_request_are_reported_once():
    replica = Replica(max_num_seqs=1)
    replica.admit(1)
    replica.admit(2, traced=True, max_tokens=2)
    replica.admit(3, traced=True)
    for _ in range(5):
        replica.step()
    replica.core.abort([3])
    two, three = replica.reports
    second = 1_000_000_000
    assert (two.request, two.attempt, two.hop, two.actor) == (2, 0, "engine", "engine-3")
    assert [(part.name, part.begin_ns, part.end_ns) for part in two.parts] == [
        ("queue", 0, 3 * second), ("prefill", 3 * second, 4 * second), ("decode", 4 * second, 5 * second),
    ]  # fmt: skip
    assert two.counts == (("actorlm.tokens", 2), ("actorlm.preemptions", 0))
    assert [(part.name, part.end_ns) for part in three.parts] == [("queue", 5 * second)]
