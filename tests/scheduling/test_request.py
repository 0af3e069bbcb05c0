from itertools import product

import pytest
from scheduling_replica import generate

from actorlm.errors import BadRequest, ProtocolError
from actorlm.messages.engine import Generate
from actorlm.messages.frontend import Finish
from actorlm.scheduling.request import LEGAL_MOVES, Request, State
from actorlm.wire import int32


def running(prompt=(1, 2, 3), *, eos=(9,), max_length=100, **options) -> Request:
    request = Request.from_generate(generate(1, prompt, **options))
    request.limit(eos, max_length)
    return request


def learn(request: Request, token: int) -> Finish:
    request.num_pending += 1
    return request.learn(token)


def test_generated_ids_of_earlier_attempts_are_output():
    request = Request.from_generate(generate(7, [1, 2, 3], generated=[4, 5], attempt=1, salt="a"))
    assert (request.id, request.attempt, request.cache_salt) == (7, 1, "a")
    assert list(request.token_ids) == [1, 2, 3, 4, 5]
    assert (request.prompt_length, request.num_generated, request.num_unscheduled) == (3, 2, 5)


def test_an_adapter_is_refused():
    message = Generate(1, 0, "frontend-0", 0, int32([1]), int32([]), generate(1, [1]).sampling, adapter="x")
    with pytest.raises(BadRequest, match="adapter is 'x'"):
        Request.from_generate(message)


def test_a_column_that_is_no_int32_is_refused():
    message = Generate(1, 0, "frontend-0", 0, b"12345", int32([]), generate(1, [1]).sampling)
    with pytest.raises(ProtocolError, match="5 bytes"):
        Request.from_generate(message)


@pytest.mark.parametrize(("origin", "target"), list(product(State, State)))
def test_only_the_moves_of_the_table_are_made(origin, target):
    request = running()
    request.state = origin
    if target in LEGAL_MOVES[origin]:
        request.move(target)
        assert request.state is target
    else:
        with pytest.raises(AssertionError, match=f"from {origin.value} to {target.value}"):
            request.move(target)


def test_the_end_of_sequence_stops():
    assert learn(running(), 8) is Finish.NOT_YET
    assert learn(running(), 9) is Finish.STOP
    assert learn(running(ignore_eos=True), 9) is Finish.NOT_YET


def test_a_stop_token_stops_also_when_the_end_of_sequence_is_ignored():
    assert learn(running(stop_token_ids=(5,), ignore_eos=True), 5) is Finish.STOP


def test_min_tokens_come_before_a_stop():
    request = running(min_tokens=3, stop_token_ids=(5,))
    assert [learn(request, token) for token in (9, 5, 9)] == [Finish.NOT_YET, Finish.NOT_YET, Finish.STOP]


def test_min_tokens_count_those_of_earlier_attempts():
    assert learn(running(generated=[4, 4], attempt=1, min_tokens=3), 9) is Finish.STOP


def test_max_tokens_count_those_of_earlier_attempts():
    request = running(generated=[4, 4], attempt=1, max_tokens=4)
    assert [learn(request, 1), learn(request, 1)] == [Finish.NOT_YET, Finish.LENGTH]


def test_the_longest_sequence_ends_with_length():
    request = running(max_length=5)
    assert [learn(request, 1), learn(request, 1)] == [Finish.NOT_YET, Finish.LENGTH]


def test_a_stop_at_the_very_end_is_a_stop():
    assert learn(running(max_tokens=1), 9) is Finish.STOP


def test_nothing_is_left_to_plan_behind_a_last_token_in_flight():
    request = running(max_tokens=1)
    request.num_scheduled, request.num_pending = 3, 1
    assert request.num_unscheduled == 0
    request.max_length += 1
    assert request.num_unscheduled == 1
