"""Offline, too, a step waits behind the one that is computed: the answers are those of one step at a time."""

import pytest

from actorlm import SamplingParams

SAMPLING = [
    {},
    {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"stop_token_ids": list(range(0, 250, 9)), "ignore_eos": False},
    {"stop_token_ids": list(range(0, 250, 5)), "min_tokens": 9},
    {"logprobs": 2, "prompt_logprobs": 1},
    {"stop": ["e", "A"], "presence_penalty": 1.0},
    {"bad_words": ["a", "th"], "n": 2},
]


def asked():
    prompts = [[number % 3 + 1, *range(40)] for number in range(21)]
    params = [
        SamplingParams(**{"seed": number, "max_tokens": 30, "ignore_eos": True} | SAMPLING[number % 7])
        for number in range(21)
    ]
    return prompts, params


def told(outputs):
    return [
        (choice.text, choice.token_ids, choice.finish_reason, choice.stop_reason, choice.logprobs)
        for output in outputs
        for choice in output.outputs
    ]


@pytest.mark.parametrize("model", ["null", "tiny"])
def test_the_same_answers_with_a_step_behind_the_one_that_is_computed(request, model):
    make = request.getfixturevalue(model)
    options = {"kv_cache_tokens": 256, "max_num_batched_tokens": 48}
    one, ahead = (make(async_scheduling=ahead, **options) for ahead in (False, True))
    expected, outputs = one.generate(*asked()), ahead.generate(*asked())
    assert told(outputs) == told(expected)
    assert [output.prompt_logprobs for output in outputs] == [output.prompt_logprobs for output in expected]
    for llm in (one, ahead):
        scheduler = llm._session._engine._core.scheduler
        assert scheduler.num_preemptions > 0


def test_nothing_is_in_flight_after_a_call(null):
    llm = null()
    llm.generate([[1, 2, 3]], SamplingParams(stop=["\n", "e", "t", "a", " "], max_tokens=300, ignore_eos=True))
    scheduler = llm._session._engine._core.scheduler
    llm._session._thread.submit(lambda: None).result()
    assert (scheduler.steps_in_flight, scheduler.kv_used_tokens) == (0, 0)
