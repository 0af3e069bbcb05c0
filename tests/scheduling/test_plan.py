import msgspec
from scheduling_replica import generate

from actorlm.messages.worker import RunStep
from actorlm.scheduling.plan import StepPlan, encode
from actorlm.scheduling.request import Request
from actorlm.wire import read_int32


def seated(request_id: int, tokens, slot: int, blocks: list[int]) -> Request:
    request = Request.from_generate(generate(request_id, tokens))
    request.slot, request.blocks = slot, blocks
    request.limit((), 100)
    return request


def test_a_row_that_reaches_the_last_token_is_sampled():
    request, plan = seated(1, [5, 6, 7], 4, [9]), StepPlan(0)
    plan.add_row(request, 2)
    assert (plan.starts, plan.counts, plan.slots, plan.sampled) == ([0], [2], [4], [])
    assert (request.num_scheduled, request.num_computed, request.num_pending) == (2, 0, 0)
    plan.add_row(request, 1)
    assert (plan.starts, plan.sampled, request.num_pending, request.steps_in_flight) == ([0, 2], [1], 1, 2)


def test_a_row_may_follow_a_token_that_is_not_known_yet():
    request, plan = seated(1, [5], 0, [9]), StepPlan(0)
    plan.add_row(request, 1)
    plan.add_row(request, 1)
    assert (plan.starts, plan.sampled, request.num_pending) == ([0, 1], [0, 1], 2)


def test_the_message_has_the_columns_of_the_plan():
    first, second = seated(1, [5, 6, 7], 4, [9, 2]), seated(2, [8], 0, [3])
    plan = StepPlan(12, released=[4])
    plan.add_request(first)
    plan.add_blocks(second, [6])
    plan.add_row(second, 1)
    plan.add_row(first, 2)
    first.token_ids.append(99)
    message = msgspec.msgpack.decode(msgspec.msgpack.encode(encode(plan)), type=RunStep)
    assert message.step == 12
    [added] = message.added
    assert (added.slot, list(read_int32(added.token_ids)), added.prompt_length) == (4, [5, 6, 7], 3)
    columns = {
        name: list(read_int32(getattr(message, name)))
        for name in ("released", "block_slots", "block_ids", "slots", "starts", "counts", "sampled")
    }
    assert columns == {
        "released": [4],
        "block_slots": [4, 4, 0],
        "block_ids": [9, 2, 6],
        "slots": [0, 4],
        "starts": [0, 0],
        "counts": [1, 2],
        "sampled": [0],
    }
