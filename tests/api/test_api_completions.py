"""`/v1/completions` as a client sees it, not streamed; and the sweep of numbers over both routes."""

import time

import msgspec
import pytest
from fake_backend import BOS, CONTEXT, VOCAB_SIZE, chat, text

from actorlm.api.schema_completions import Completion

PATH = "/v1/completions"
NUMBERS = [
    b"-1", b"0", b"1e-300", b"1e308", b"2147483648", b"9223372036854775808", b"18446744073709551616", b"1e999",
    b"NaN", b"Infinity", b"-Infinity", b"1.5", b'"1"', b"true", b"null", b"[]", b"{}", b"9" * 5000, b"-" + b"9" * 400,
]  # fmt: skip
NUMERIC = [
    "n", "best_of", "max_tokens", "max_completion_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logprobs", "top_logprobs", "seed", "priority",
    "truncate_prompt_tokens",
]  # fmt: skip


async def test_an_answer_has_openais_shape(client):
    answer = await client.post(PATH, json=text())
    completion = msgspec.json.decode(answer.content, type=Completion)
    assert completion.id.startswith("cmpl-")
    (choice,) = completion.choices
    assert (choice.text, choice.finish_reason, choice.index) == ("Hello, wörld!", "stop", 0)
    assert completion.usage.total_tokens == 9


async def test_c18_b28_prompts_keep_their_order(client, backend):
    backend.words = lambda one: [bytes(one.prompt_ids[-1:]).decode(), str(one.sampling.seed), "."]
    answer = (await client.post(PATH, json=text(prompt=["a", "bb", "c"], n=2, seed=3))).json()
    seeds = [one.sampling.seed for one in backend.submissions]
    assert seeds[0::2] == [3, 3, 3]
    assert len(set(seeds[1::2])) == 1
    texts = [f"{letter}{seed}." for letter, seed in zip("aabbcc", seeds, strict=True)]
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3, 4, 5]
    assert answer["usage"]["prompt_tokens"] == 2 + 3 + 2
    assert answer["usage"]["completion_tokens"] == 18


async def test_c19_prompts_without_a_seed_draw_their_own(client, backend):
    await client.post(PATH, json=text(prompt=["a", "a"], n=2))
    assert len({one.sampling.seed for one in backend.submissions}) == 4


@pytest.mark.parametrize(
    ("prompt", "ids", "echo"),
    [
        ("Hi", [[BOS, 72, 105]], ["Hi"]),
        (["Hi", "Ho"], [[BOS, 72, 105], [BOS, 72, 111]], ["Hi", "Ho"]),
        ([72, 105], [[72, 105]], ["Hi"]),
        ([[72], [105]], [[72], [105]], ["H", "i"]),
    ],
)
async def test_c18_forms_of_a_prompt_and_their_echo(client, backend, prompt, ids, echo):
    answer = await client.post(PATH, json=text(prompt=prompt, echo=True))
    assert answer.status_code == 200
    assert [one.prompt_ids for one in backend.submissions] == ids
    assert [choice["text"] for choice in answer.json()["choices"]] == [f"{one}Hello, wörld!" for one in echo]


async def test_c02_an_echo_alone_generates_nothing(client, backend):
    answer = await client.post(PATH, json=text(prompt=["Hi", "Ho"], n=2, echo=True, max_tokens=0))
    assert answer.status_code == 200
    assert [choice["text"] for choice in answer.json()["choices"]] == ["Hi", "Hi", "Ho", "Ho"]
    assert {choice["finish_reason"] for choice in answer.json()["choices"]} == {"length"}
    assert answer.json()["usage"]["completion_tokens"] == 0
    assert not backend.generations


@pytest.mark.parametrize("length", [0, -1, 1.5, "5"])
async def test_c02_lengths_that_are_none(client, length):
    answer = await client.post(PATH, json=text(max_tokens=length))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], None, ["a", ""], [[1], []], ["a", [1]], [1, "a"], 5, {}])
async def test_c01_c18_prompts_that_are_none(client, backend, prompt):
    backend.bos = []
    answer = await client.post(PATH, json=text(prompt=prompt))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert not backend.generations


async def test_c01_a_missing_prompt(client):
    answer = await client.post(PATH, json={"model": "org/fake"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize("ids", [[999999999], [-1], [VOCAB_SIZE], [2**63], [2**64], [1, -1], [[1], [VOCAB_SIZE]]])
async def test_c03_ids_outside_of_the_vocabulary(client, backend, ids):
    answer = await client.post(PATH, json=text(prompt=ids))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert not backend.generations


async def test_c03_the_last_id_of_the_vocabulary_is_taken(client):
    assert (await client.post(PATH, json=text(prompt=[VOCAB_SIZE - 1]))).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"191222": -100}),
        ("logit_bias", {"-1": 5}),
        ("logit_bias", {"abc": 1}),
        ("logit_bias", {"5": 1e9}),
        ("logit_bias", {"5": "NaN"}),
        ("logit_bias", {str(i): 1 for i in range(300_000)}),
        ("stop_token_ids", [VOCAB_SIZE]),
        ("stop_token_ids", [0] * 129),
        ("stop", ["x"] * 65),
        ("stop", "x" * 1025),
        ("stop", ""),
        ("stop", [1]),
        ("seed", 2**63),
        ("allowed_token_ids", []),
    ],
)
async def test_c03_lists_and_maps_out_of_bounds(client, backend, field, value):
    answer = await client.post(PATH, json=text(**{field: value}))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(field)
    assert not backend.generations


@pytest.mark.parametrize("name", NUMERIC)
async def test_c04_sweep_of_numbers(client, name):
    for path, body in (
        (PATH, b'"prompt":"Hi"'),
        ("/v1/chat/completions", b'"messages":[{"role":"user","content":"Hi"}]'),
    ):
        for number in NUMBERS:
            content = b'{"model":"org/fake",%b,"%b":%b}' % (body, name.encode(), number)
            answer = await client.post(path, content=content, headers={"content-type": "application/json"})
            assert answer.status_code in {200, 400}, (path, number, answer.text)
            if answer.status_code == 400 and number not in {b"NaN", b"Infinity", b"-Infinity"}:
                assert answer.json()["error"]["param"] == name, (number, answer.text)
                assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_e10_too_many_choices_are_refused_fast(client, backend):
    start = time.monotonic()
    for body, param in (
        (text(n=1_000_000), "n"),
        (text(prompt=["a", "b", "c"], n=3), "n"),
        (text(prompt=["a"] * 100_000), "prompt"),
        (text(prompt=[[1]] * 100_000), "prompt"),
        (text(best_of=1_000_000), "best_of"),
    ):
        answer = await client.post(PATH, json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
    answer = await client.post("/v1/chat/completions", json=chat(n=9))
    assert answer.json()["error"]["param"] == "n"
    assert time.monotonic() - start < 10
    assert not backend.generations


@pytest.mark.parametrize(
    ("length", "status"), [(CONTEXT - 1, 200), (CONTEXT, 400), (CONTEXT + 1, 400), (1_000_000, 400)]
)
async def test_c14_long_prompts(client, backend, length, status):
    for prompt in ([65] * length, "x" * (length - 1)):
        for fields in ({}, {"max_tokens": 1}, {"stream": True}):
            answer = await client.post(PATH, json=text(prompt=prompt, **fields))
            assert answer.status_code == status
            if status == 200:
                assert backend.submissions[-1].sampling.max_tokens == 1
            else:
                assert answer.headers["content-type"] == "application/json"
                assert answer.json()["error"]["code"] == "context_length_exceeded"
                assert answer.json()["error"]["param"] == "prompt"
    if status == 200:
        answer = await client.post(PATH, json=text(prompt=[65] * length))
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        assert answer.json()["usage"]["completion_tokens"] == 1


async def test_c13_more_than_the_room_is_cut_to_it(client, backend):
    await client.post(PATH, json=text(max_tokens=10 * CONTEXT))
    await client.post("/v1/chat/completions", json=chat(max_completion_tokens=10 * CONTEXT))
    assert [one.sampling.max_tokens for one in backend.submissions] == [CONTEXT - 3, CONTEXT - 3]
