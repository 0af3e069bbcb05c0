"""Lowering: what a request asks for is what is submitted, or it is refused."""

import msgspec
import pytest
from fake_backend import CONTEXT, VOCAB_SIZE, chat, text

from actorlm.api import lower
from actorlm.api.lower_chat import conversation, max_completion_tokens, top_logprobs
from actorlm.api.lower_completions import max_tokens, prompt_logprobs, prompts
from actorlm.api.ports import Limits
from actorlm.api.schema_chat import ChatCompletionRequest
from actorlm.api.schema_completions import CompletionRequest
from actorlm.checkpoint.describe import BYTES
from actorlm.checkpoint.description import SamplingDefaults
from actorlm.errors import BadRequest, ContextLengthExceeded
from actorlm.sampling import MAX_SEED, MIN_SEED, SamplingParams

LIMITS = Limits(CONTEXT, 8)
MODEL = msgspec.structs.replace(BYTES, vocab_size=VOCAB_SIZE, eos_token_ids=(0,))


def as_chat(**fields):
    return msgspec.convert(chat(**fields), ChatCompletionRequest)


def as_text(**fields):
    return msgspec.convert(text(**fields), CompletionRequest)


WANTED = lower.Wanted(20)


def submit(request, n=1, wanted=WANTED, seed=7, banned=(), model=MODEL):
    return lower.submissions(
        request, [1, 2], wanted=wanted, n=n, model=model, banned=banned, draw_seed=lambda: seed
    )  # fmt: skip


def test_every_used_field_reaches_the_submission():
    request = as_text(
        temperature=0.5, top_p=0.25, top_k=3, min_p=0.125, seed=-1, min_tokens=2, ignore_eos=True, stop=["a", "b"],
        stop_token_ids=[5, 256], logit_bias={"7": -100, "8": 1.5}, skip_special_tokens=False,
        include_stop_str_in_output=True, repetition_penalty=1.5, presence_penalty=-0.5, frequency_penalty=0.25,
        allowed_token_ids=[9, 5], bad_words=["x"], logprobs=2, logprob_token_ids=[4, 3],
        spaces_between_special_tokens=False,
    )  # fmt: skip
    (one,) = submit(request, banned=((7, 8),), wanted=lower.Wanted(20, 2, 1))
    assert one.prompt_ids == [1, 2]
    assert one.sampling == SamplingParams(
        max_tokens=20, temperature=0.5, top_p=0.25, top_k=3, min_p=0.125, seed=-1, min_tokens=2, ignore_eos=True,
        stop_token_ids=(5, 256), logit_bias=((7, -100.0), (8, 1.5)), repetition_penalty=1.5, presence_penalty=-0.5,
        frequency_penalty=0.25, allowed_token_ids=(9, 5), bad_words=((7, 8),), logprobs=2, prompt_logprobs=1,
        logprob_token_ids=(4, 3),
    )  # fmt: skip
    assert one.stop == ("a", "b")
    assert one.include_stop
    assert not one.skip_special_tokens
    assert not one.spaces_between_special_tokens


def test_defaults_are_openais():
    (one,) = submit(as_text())
    assert one.sampling == SamplingParams(max_tokens=20, seed=7)
    assert one.sampling.temperature == 1.0
    assert (one.stop, one.include_stop, one.skip_special_tokens) == ((), False, True)


def test_the_models_defaults_hold_for_what_a_request_leaves_open():
    recommended = SamplingDefaults(temperature=0.5, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1)
    model = msgspec.structs.replace(MODEL, sampling_defaults=recommended)
    (one,) = submit(as_text(), model=model)
    expected = SamplingParams(
        max_tokens=20, seed=7, temperature=0.5, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1
    )  # fmt: skip
    assert one.sampling == expected
    (one,) = submit(as_text(temperature=0, top_p=1, top_k=-1, min_p=0, repetition_penalty=1), model=model)
    assert one.sampling == SamplingParams(max_tokens=20, seed=7, temperature=0)


@pytest.mark.parametrize(("asked", "meant"), [(None, 0), (-1, 0), (0, 0), (5, 5)])
def test_top_k_of_minus_one_is_off(asked, meant):
    assert submit(as_text(top_k=asked))[0].sampling.top_k == meant


@pytest.mark.parametrize("seed", [MIN_SEED, -1, 0, 2**32, MAX_SEED])
def test_c19_the_first_choice_has_the_seed_itself_and_the_others_their_own(seed):
    seeds = [one.sampling.seed for one in submit(as_text(seed=seed), n=100)]
    assert seeds[0] == seed
    assert len(set(seeds)) == 100
    assert all(MIN_SEED <= one <= MAX_SEED for one in seeds)
    assert seeds == [one.sampling.seed for one in submit(as_text(seed=seed), n=100)]


def test_c19_the_derivation_of_seeds_does_not_change():
    assert [lower.derived_seed(42, choice) for choice in range(3)] == [42, 936818002525049801, -733102711815567701]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop_token_ids", [VOCAB_SIZE]),
        ("stop_token_ids", [-1]),
        ("logit_bias", {"257": -100}),
        ("logit_bias", {"-1": 5}),
        ("logit_bias", {"abc": 1}),
        ("logit_bias", {"9" * 5000: 1}),
        ("min_tokens", 21),
        ("logprob_token_ids", [VOCAB_SIZE]),
        ("allowed_token_ids", [VOCAB_SIZE]),
        ("allowed_token_ids", [-1]),
        ("allowed_token_ids", [1] * (VOCAB_SIZE + 1)),
    ],
)
def test_c03_values_beyond_the_model_are_refused(field, value):
    with pytest.raises(BadRequest) as caught:
        submit(as_text(**{field: value}))
    assert caught.value.param == field


EVERY_TOKEN = tuple((token,) for token in range(VOCAB_SIZE))


@pytest.mark.parametrize(
    ("fields", "banned", "left"),
    [
        ({"allowed_token_ids": [0, 9], "stop_token_ids": [9]}, (), True),
        ({"allowed_token_ids": [0, 9], "stop_token_ids": [9], "min_tokens": 1}, (), False),
        ({"allowed_token_ids": [5, 6]}, ((5,), (1, 7)), True),
        ({"allowed_token_ids": [5, 6]}, ((5,), (1, 6)), False),
        ({}, EVERY_TOKEN[:-1], True),
        ({"min_tokens": 1}, EVERY_TOKEN[1:-1], True),
        ({"min_tokens": 1}, EVERY_TOKEN[1:], False),
    ],
)
def test_c04_something_is_always_left_to_choose(monkeypatch, fields, banned, left):
    monkeypatch.setattr("actorlm.sampling.MAX_BAD_WORDS", VOCAB_SIZE)
    if left:
        assert submit(as_text(**fields), banned=banned)
        return
    with pytest.raises(BadRequest, match="no token may be left") as caught:
        submit(as_text(**fields), banned=banned)
    assert caught.value.param == ("allowed_token_ids" if "allowed_token_ids" in fields else "bad_words")


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20, "logprob_token_ids": [1]}, 20),
    ],
)
def test_log_probabilities_of_chat(fields, wanted):
    assert top_logprobs(as_chat(**fields)) == wanted


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [({}, None), ({"logprobs": 2}, None), ({"logprobs": 2, "echo": True}, 2), ({"logprobs": 0, "echo": True}, 0)],
)
def test_an_echo_has_the_prompts_log_probabilities(fields, wanted):
    assert prompt_logprobs(as_text(**fields)) == wanted


@pytest.mark.parametrize("fields", [{"top_logprobs": 1}, {"logprobs": False, "top_logprobs": 2}])
def test_top_logprobs_without_logprobs_are_refused(fields):
    with pytest.raises(BadRequest) as caught:
        top_logprobs(as_chat(**fields))
    assert caught.value.param == "top_logprobs"


def test_token_ids_without_logprobs_are_refused():
    for wanted in (lambda: top_logprobs(as_chat(logprob_token_ids=[1])),
                   lambda: prompt_logprobs(as_text(logprob_token_ids=[1]))):  # fmt: skip
        with pytest.raises(BadRequest) as caught:
            wanted()
        assert caught.value.param == "logprob_token_ids"


async def test_bad_words_are_spelled_at_the_beginning_and_after_a_space(backend):
    assert await lower.bad_words(as_text(), backend) == ()
    found = await lower.bad_words(as_text(bad_words=["ab", " ab", "c"]), backend)
    assert found == ((97, 98), (99,))  # bytes: a space would be a token more
    with pytest.raises(BadRequest) as caught:
        await lower.bad_words(as_text(bad_words=[" "]), backend)
    assert caught.value.param == "bad_words"


def test_c03_the_last_id_of_the_vocabulary_is_taken():
    assert submit(as_text(stop_token_ids=[VOCAB_SIZE - 1], logit_bias={str(VOCAB_SIZE - 1): 1}))


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ([], BadRequest),
        ([VOCAB_SIZE], BadRequest),
        ([-1], BadRequest),
        ([2**63], BadRequest),
        ([0] * CONTEXT, ContextLengthExceeded),
        ([0] * (CONTEXT + 1), ContextLengthExceeded),
    ],
)
def test_c03_c14_prompts_that_cannot_be_continued(ids, error):
    with pytest.raises(error) as caught:
        lower.check_prompt(ids, "prompt", VOCAB_SIZE, LIMITS)
    assert caught.value.param == "prompt"


def test_c14_the_room_is_what_the_prompt_leaves():
    assert lower.check_prompt([0] * (CONTEXT - 1), "prompt", VOCAB_SIZE, LIMITS) == 1


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("s", ["s"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_c18_forms_of_a_prompt(prompt, found):
    assert prompts(prompt) == found


@pytest.mark.parametrize("prompt", [["a", [1]], [1, "a"], [[1], 2], ["a", 1]])
def test_c18_mixed_prompts_are_refused(prompt):
    with pytest.raises(BadRequest, match="mixes"):
        prompts(prompt)


@pytest.mark.parametrize(("asked", "meant"), [(None, 16), (3, 3), (20, 20), (21, 20), (2**63, 20)])
def test_c13_c15_completions_default_to_16_and_are_cut_to_the_room(asked, meant):
    assert max_tokens(as_text(max_tokens=asked), 20) == meant


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ({}, 20),
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 3}, 3),
        ({"max_completion_tokens": 3, "max_tokens": 3}, 3),
        ({"max_completion_tokens": 21}, 20),
        ({"max_tokens": 2**64}, 20),
    ],
)
def test_c13_c15_chat_defaults_to_the_room_and_is_cut_to_it(fields, meant):
    assert max_completion_tokens(as_chat(**fields), 20) == meant


def test_c13_two_different_lengths_are_refused():
    with pytest.raises(BadRequest) as caught:
        max_completion_tokens(as_chat(max_completion_tokens=3, max_tokens=4), 20)
    assert caught.value.param == "max_tokens"


@pytest.mark.parametrize(("fields", "count", "param"), [({"n": 9}, 1, "n"), ({"n": 3}, 3, "n"), ({}, 9, "prompt")])
def test_e10_too_many_choices_are_refused(fields, count, param):
    with pytest.raises(BadRequest) as caught:
        lower.check_choices(as_text(**fields), count, LIMITS)
    assert caught.value.param == param


def test_e10_as_many_choices_as_allowed():
    assert lower.check_choices(as_text(n=4), 2, LIMITS) == 4


def test_b14_stream_options_need_a_stream():
    with pytest.raises(BadRequest) as caught:
        lower.wants_stream(as_text(stream_options={"include_usage": True}))
    assert caught.value.param == "stream_options"


@pytest.mark.parametrize(
    ("message", "turn"),
    [
        ({"role": "system", "content": "a"}, {"role": "system", "content": "a"}),
        ({"role": "developer", "content": "a"}, {"role": "system", "content": "a"}),
        ({"role": "user", "content": "a", "name": "n"}, {"role": "user", "content": "a", "name": "n"}),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
         {"role": "user", "content": "a\nb"}),
        ({"role": "user", "content": []}, {"role": "user", "content": ""}),
        ({"role": "user", "content": None}, {"role": "user", "content": ""}),
        ({"role": "user"}, {"role": "user", "content": ""}),
        ({"role": "assistant", "content": "", "annotations": []}, {"role": "assistant", "content": ""}),
        ({"role": "assistant", "refusal": "no"}, {"role": "assistant", "content": "no"}),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
         {"role": "assistant", "content": "no"}),
        ({"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "a"}]},
         {"role": "tool", "tool_call_id": "1", "content": "a"}),
    ],
)  # fmt: skip
def test_c10_messages_become_turns_without_none(message, turn):
    assert conversation(as_chat(messages=[message]).messages) == [turn]


def test_c10_calls_of_earlier_turns_keep_their_arguments():
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "2", "type": "function", "function": {"name": "f", "arguments": "broken {"}},
    ]
    (turn,) = conversation(as_chat(messages=[{"role": "assistant", "content": None, "tool_calls": calls}]).messages)
    assert turn["content"] == ""
    assert [call["function"]["arguments"] for call in turn["tool_calls"]] == [{"x": 1}, "broken {"]
