"""`/v1/chat/completions` as a client sees it, not streamed."""

import msgspec
import pytest
from fake_backend import BOS, CONTEXT, chat

from actorlm.api.schema_chat import ChatCompletion
from actorlm.errors import BadRequest, Overloaded, Unavailable

PATH = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f"}}
NAMED = {"type": "function", "function": {"name": "f"}}
UNKNOWN = {"type": "function", "function": {"name": "g"}}


async def test_an_answer_has_openais_shape(client, backend):
    backend.cached_tokens = 2
    answer = await client.post(PATH, json=chat())
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    completion = msgspec.json.decode(answer.content, type=ChatCompletion)
    assert completion.id.startswith("chatcmpl-")
    assert completion.model == "org/fake"
    (choice,) = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("Hello, wörld!", "stop")
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 6, 9)
    assert usage.prompt_tokens_details.cached_tokens == 2


async def test_b28_n_choices_keep_their_texts(client, backend):
    backend.words = lambda one: [str(one.sampling.seed), "!"]
    backend.cached_tokens = 3
    answer = (await client.post(PATH, json=chat(n=4, seed=5))).json()
    seeds = [one.sampling.seed for one in backend.submissions]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["message"]["content"] for choice in answer["choices"]] == [f"{seed}!" for seed in seeds]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 3


async def test_b10_choices_end_for_their_own_reasons(client, backend):
    backend.words = lambda one: ["a", "b", "c"] if one.sampling.seed == 1 else ["a"] * 9
    answer = (await client.post(PATH, json=chat(n=3, seed=1, max_tokens=4))).json()
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "length", "length"]


async def test_c01_no_messages(client, backend):
    for messages in ([], None, {}, "x"):
        answer = await client.post(PATH, json=chat(messages=messages))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "messages"
    assert not backend.generations


async def test_c01_an_empty_message_needs_a_token_to_begin_with(client, backend):
    message = [{"role": "user", "content": ""}]
    assert (await client.post(PATH, json=chat(messages=message))).status_code == 200
    assert backend.submissions[0].prompt_ids == [BOS]
    backend.bos = []
    answer = await client.post(PATH, json=chat(messages=message))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"


@pytest.mark.parametrize("length", [0, -1, 1.5, "5", True])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_c02_lengths_that_are_none(client, name, length):
    answer = await client.post(PATH, json=chat(**{name: length}))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name


@pytest.mark.parametrize("choice", [None, "none", "auto"])
@pytest.mark.parametrize("tools", [None, []])
async def test_c11_no_tools_and_no_demand_is_plain_text(client, tools, choice):
    answer = await client.post(PATH, json=chat(tools=tools, tool_choice=choice))
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "Hello, wörld!"


async def test_c11_tools_that_may_not_be_called_are_plain_text(client, backend):
    answer = await client.post(PATH, json=chat(tools=[TOOL], tool_choice="none"))
    assert answer.status_code == 200
    assert backend.conversations == [[{"role": "user", "content": "Hi"}]]


@pytest.mark.parametrize(
    ("tools", "choice", "param", "word"),
    [
        ([], "required", "tool_choice", "empty"),
        (None, NAMED, "tool_choice", "empty"),
        ([TOOL], "required", "tool_choice", "not implemented"),
        ([TOOL], NAMED, "tool_choice", "not implemented"),
        ([TOOL], UNKNOWN, "tool_choice", "'g'"),
        ([TOOL], None, "tools", "not implemented"),
        ([TOOL], "auto", "tools", "not implemented"),
    ],
)
async def test_c11_what_would_need_a_call_is_refused_by_name(client, tools, choice, param, word):
    answer = await client.post(PATH, json=chat(tools=tools, tool_choice=choice))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert word in answer.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
async def test_e18_other_parts_than_text_are_refused_and_nothing_is_fetched(client, backend, kind):
    part = {"type": kind, kind: {"url": "http://127.0.0.1:9/x.png"}}
    answer = await client.post(PATH, json=chat(messages=[{"role": "user", "content": [part]}]))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[0].type"
    assert not backend.conversations


async def test_c10_a_turn_with_tools(client, backend):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "c"},
    ]
    answer = await client.post(PATH, json=chat(messages=messages))
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] == len("abc") + 1


@pytest.mark.parametrize(("length", "status"), [(CONTEXT - 2, 200), (CONTEXT - 1, 400), (CONTEXT, 400), (100_000, 400)])
async def test_c14_long_conversations(client, backend, length, status):
    for fields in ({}, {"max_tokens": 1}, {"stream": True}):
        answer = await client.post(PATH, json=chat(messages=[{"role": "user", "content": "x" * length}], **fields))
        assert answer.status_code == status
        if status == 200:
            assert backend.submissions[-1].sampling.max_tokens == 1
        else:
            assert answer.json()["error"]["code"] == "context_length_exceeded"
            assert answer.json()["error"]["param"] == "messages"


async def test_unknown_models_are_404(client, backend):
    for model in ("gpt-5", "", "ORG/FAKE", "org/fake "):
        answer = await client.post(PATH, json=chat(model=model))
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        assert answer.json()["error"]["param"] == "model"
    assert not backend.generations


async def test_what_a_template_refuses_is_about_the_messages(client, backend):
    async def refuse(*_):
        raise BadRequest("roles must alternate")

    backend.render_chat = refuse
    answer = await client.post(PATH, json=chat())
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "roles must alternate",
        "type": "invalid_request_error",
        "param": "messages",
        "code": None,
    }


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "status"), [(Overloaded("full"), 429), (Unavailable("gone"), 503)])
async def test_c23_refusals_say_when_to_come_back(client, backend, error, *, status, stream, late):
    """Also those of the engine, which come with the first step, are ordinary answers to a stream."""
    if late:
        backend.fail_at = (0, error)
    else:
        backend.refusal = error
    answer = await client.post(PATH, json=chat(stream=stream))
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["error"]["type"] == error.type


@pytest.mark.parametrize("stream", [False, True])
async def test_c09_a_fault_of_ours_is_a_500_without_its_details(client, backend, stream):
    backend.fail_at = (0, RuntimeError("secret"))
    answer = await client.post(PATH, json=chat(stream=stream))
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "secret" not in answer.text


async def test_c09_a_fault_in_a_handler_is_a_500_without_its_details(client, backend):
    backend.render_chat = None
    answer = await client.post(PATH, json=chat())
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "NoneType" not in answer.text
