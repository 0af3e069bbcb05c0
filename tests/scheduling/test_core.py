"""What the shells around the scheduler rely on: checked requests in, encoded steps out, answers taken in."""

import pytest

from actorlm.config import SchedulerConfig
from actorlm.errors import BadRequest, ContextLengthExceeded
from actorlm.messages.engine import Generate
from actorlm.messages.executor import StepDone
from actorlm.messages.frontend import Finish
from actorlm.sampling import SamplingParams
from actorlm.scheduling.core import Core
from actorlm.scheduling.scheduler import Scheduler
from actorlm.wire import int32, read_int32


@pytest.fixture
def core():
    scheduler = Scheduler(
        SchedulerConfig(), num_blocks=4, max_model_len=32, eos_token_ids=(9,), prefix_caching=True
    )  # fmt: skip
    yield Core(scheduler, vocab_size=10)
    scheduler.check()


def generate(*prompt, max_tokens=2, **fields):
    return Generate(7, 0, "", 0, int32(prompt), b"", SamplingParams(max_tokens=max_tokens), **fields)


def test_a_request_is_run_to_its_end(core):
    core.admit(generate(1, 2, 3))
    first = core.next_step()
    assert list(read_int32(first.message.counts)) == [3]
    (sampled,), scores = core.take(first, StepDone(0, int32([4]), 0))
    assert not scores
    assert (sampled.request.id, sampled.token, sampled.finish) == (7, 4, Finish.NOT_YET)
    (sampled,), _ = core.take(core.next_step(), StepDone(1, int32([9]), 0))
    assert sampled.finish is Finish.STOP
    assert core.next_step() is None
    assert (core.steps, core.tokens) == (2, 4)


@pytest.mark.parametrize("message", [generate(1, 10), generate(-1), generate(max_tokens=0)])
def test_what_cannot_be_served_is_not_accepted(core, message):
    with pytest.raises(BadRequest):
        core.admit(message)
    assert core.next_step() is None


def test_what_can_never_fit_is_not_accepted(core):
    with pytest.raises(ContextLengthExceeded):
        core.admit(generate(*[1] * 32))
