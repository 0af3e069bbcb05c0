"""What a request says of its prompt: how it is rendered, cut, tokenized and shown; and its place among others."""

import msgspec
import pytest
from fake_backend import BOS, CONTEXT, chat, text
from test_api_stream import parsed

from actorlm.api.schema_chat import ChatCompletion, ChatCompletionChunk
from actorlm.api.schema_completions import Completion

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ROUTES = [(CHAT, chat), (COMPLETIONS, text)]


async def test_how_a_conversation_is_rendered(client, backend):
    fields = {"chat_template_kwargs": {"thinking": False}, "documents": [{"text": "x"}], "add_special_tokens": True}
    await client.post(CHAT, json=chat())
    await client.post(CHAT, json=chat(continue_final_message=True, **fields))
    await client.post(CHAT, json=chat(add_generation_prompt=False))
    first, second, third = backend.renderings
    assert (first.add_generation_prompt, first.continue_final_message, first.variables) == (True, False, {})
    assert (second.add_generation_prompt, second.continue_final_message) == (False, True)
    assert (second.variables, second.documents) == ({"thinking": False}, [{"text": "x"}])
    assert (first.add_special_tokens, second.add_special_tokens) == (False, True)
    assert not third.add_generation_prompt


async def test_a_message_is_begun_or_continued(client, backend):
    answer = await client.post(CHAT, json=chat(add_generation_prompt=True, continue_final_message=True))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "continue_final_message"
    assert not backend.generations


async def test_special_tokens_of_a_text(client, backend):
    await client.post(COMPLETIONS, json=text(add_special_tokens=False))
    assert backend.submissions[0].prompt_ids == [72, 105]


@pytest.mark.parametrize("prompt", ["abcdef", list(b"abcdef")])
@pytest.mark.parametrize(("kept", "expected"), [(2, b"ef"), (100, b"abcdef"), (2**40, b"abcdef")])
async def test_the_end_of_a_prompt_is_kept(client, backend, prompt, kept, expected):
    body = text(prompt=prompt, truncate_prompt_tokens=kept, echo=True)
    answer = (await client.post(COMPLETIONS, json=body)).json()
    special = [BOS] if isinstance(prompt, str) and kept > 6 else []
    assert backend.submissions[0].prompt_ids == [*special, *expected]
    assert answer["choices"][0]["text"].startswith(expected.decode() + "Hel")
    assert answer["usage"]["prompt_tokens"] == len(special) + len(expected)


async def test_the_end_of_a_conversation_is_kept(client, backend):
    await client.post(CHAT, json=chat(truncate_prompt_tokens=1))
    assert backend.submissions[0].prompt_ids == [105]


async def test_minus_one_leaves_room_for_the_output(client, backend):
    long = "x" * 200 * CONTEXT
    await client.post(COMPLETIONS, json=text(prompt=long, truncate_prompt_tokens=-1, max_tokens=5))
    await client.post(COMPLETIONS, json=text(prompt=[65] * 99, truncate_prompt_tokens=-1))
    await client.post(CHAT, json=chat(truncate_prompt_tokens=-1, max_completion_tokens=9))
    assert [len(one.prompt_ids) for one in backend.submissions] == [CONTEXT - 5, CONTEXT - 16, 3]
    assert backend.renderings[0].last == CONTEXT - 9
    assert backend.submissions[0].sampling.max_tokens == 5


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize("length", [0, -2])
async def test_c04_nothing_of_a_prompt_cannot_be_kept(client, path, body, length):
    answer = await client.post(path, json=body(truncate_prompt_tokens=length))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "truncate_prompt_tokens")


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_salt_and_priority_go_with_every_choice(client, backend, path, body):
    await client.post(path, json=body(n=2, cache_salt="tenant", priority=-3))
    assert [(one.cache_salt, one.priority) for one in backend.submissions] == [("tenant", -3)] * 2
    await client.post(path, json=body())
    assert (backend.submissions[2].cache_salt, backend.submissions[2].priority) == ("", 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("cache_salt", ""), ("cache_salt", "x" * 1025), ("priority", 1001), ("priority", -1001), ("priority", 0.5)],
)
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_c04_salts_and_priorities_that_are_none(client, path, body, field, value):
    answer = await client.post(path, json=body(**{field: value}))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize("n", [1, 2])
async def test_token_ids_of_a_chat(client, n):
    body = chat(return_token_ids=True, n=n)
    whole = await client.post(CHAT, json=body)
    msgspec.json.decode(whole.content, type=ChatCompletion)
    assert whole.json()["prompt_token_ids"] == [BOS, 72, 105]
    assert [choice["token_ids"] for choice in whole.json()["choices"]] == [[1, 2, 3, 4, 5, 6]] * n
    ids, prompts = {}, []
    for event in parsed((await client.post(CHAT, json=body | {"stream": True})).text):
        msgspec.convert(event, ChatCompletionChunk)
        prompts += [event["prompt_token_ids"]] if "prompt_token_ids" in event else []
        for choice in event["choices"]:
            ids.setdefault(choice["index"], []).extend(choice["token_ids"])
    assert prompts == [[BOS, 72, 105]] * n
    assert list(ids.values()) == [[1, 2, 3, 4, 5, 6]] * n


@pytest.mark.parametrize("fields", [{}, {"echo": True}, {"echo": True, "max_tokens": 0}])
async def test_token_ids_of_completions(client, fields):
    body = text(return_token_ids=True, prompt=["Hi", "A"], n=2, **fields)
    whole = await client.post(COMPLETIONS, json=body)
    msgspec.json.decode(whole.content, type=Completion)
    choices = whole.json()["choices"]
    assert [choice["prompt_token_ids"] for choice in choices] == [[BOS, 72, 105]] * 2 + [[BOS, 65]] * 2
    expected = [] if fields.get("max_tokens") == 0 else [1, 2, 3, 4, 5, 6]
    assert [choice["token_ids"] for choice in choices] == [expected] * 4
    ids, prompts, texts = [[] for _ in choices], [[] for _ in choices], [""] * 4
    for event in parsed((await client.post(COMPLETIONS, json=body | {"stream": True})).text):
        msgspec.convert(event, Completion)
        for choice in event["choices"]:
            ids[choice["index"]] += choice["token_ids"]
            prompts[choice["index"]] += choice.get("prompt_token_ids", [])
            texts[choice["index"]] += choice["text"]
    assert ids == [choice["token_ids"] for choice in choices]
    assert prompts == [choice["prompt_token_ids"] for choice in choices]
    assert texts == [choice["text"] for choice in choices]


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_unasked_there_are_no_token_ids(client, path, body):
    assert "token_ids" not in (await client.post(path, json=body())).text
    assert "token_ids" not in (await client.post(path, json=body(stream=True))).text


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_b14_usage_in_every_event(client, backend, path, body):
    backend.cached_tokens = 2
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = await client.post(path, json=body(n=2, stream=True, stream_options=options, return_token_ids=True))
    usages = [event["usage"] for event in parsed(answer.text)]
    assert all(one["prompt_tokens"] == 3 for one in usages)
    counts = [one["completion_tokens"] for one in usages]
    assert counts == sorted(counts)
    assert len(set(counts)) == 12
    assert usages[-1] == usages[-2]
    assert usages[-1]["prompt_tokens_details"] == {"cached_tokens": 2}


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_b14_continuous_usage_is_usage(client, path, body):
    answer = await client.post(path, json=body(stream=True, stream_options={"continuous_usage_stats": True}))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream_options")
