"""A worker that fails says whose step it was."""

import pytest
from structlog.testing import capture_logs

from actorlm.execution.worker import Worker
from actorlm.messages.worker import AddRequest, RunStep
from actorlm.sampling import SamplingParams
from actorlm.wire import int32


class Fragile:
    bytes_read = 0

    def execute(self, step):
        if step.step == 2:
            raise ValueError("odd")


def step(number, slots, added=()):
    requests = tuple(AddRequest(slot, int32([1]), 1, SamplingParams(1), f"id-{slot}") for slot in added)
    return RunStep(number, b"", requests, b"", b"", int32(slots), int32(slots), int32(slots), b"")


def test_the_requests_of_a_failing_step_are_named():
    worker = Worker(Fragile())
    worker.execute(step(0, [4, 7], added=(4, 7)))
    worker.execute(step(1, [4, 2], added=(2,)))
    with capture_logs() as lines, pytest.raises(ValueError, match="odd"):
        worker.execute(step(2, [2, 4]))
    (line,) = lines
    assert (line["log_level"], line["event"], line["step"]) == ("error", "step failed", 2)
    assert line["request_ids"] == ["id-2", "id-4"]
    assert line["error"] == "ValueError: odd"
