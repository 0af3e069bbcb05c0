"""Every bound of a request's fields: what is at it is taken, what is beyond is refused by name, with the bound."""

import pytest
from fake_backend import chat, text

from actorlm.api.schema import MAX_STOP_CHARACTERS, MAX_STOP_STRINGS
from actorlm.api.schema_chat import MAX_DOCUMENTS, MAX_MESSAGES, MAX_PARTS, MAX_TOOLS
from actorlm.sampling import MAX_BAD_WORDS, MAX_LOGIT_BIAS, MAX_LOGPROB_TOKEN_IDS, MAX_STOP_TOKEN_IDS

MESSAGE = {"role": "user", "content": ""}
PART = {"type": "text", "text": ""}
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

CHAT = {
    "messages": (MAX_MESSAGES, lambda count: {"messages": [MESSAGE] * count}),
    "messages[0].content": (MAX_PARTS, lambda count: {"messages": [{"role": "user", "content": [PART] * count}]}),
    "tools": (MAX_TOOLS, lambda count: {"tools": [TOOL] * count, "tool_choice": "none"}),
    "messages[0].tool_calls": (
        MAX_TOOLS,
        lambda count: {"messages": [{"role": "assistant", "tool_calls": [CALL] * count}]},
    ),
    "documents": (MAX_DOCUMENTS, lambda count: {"documents": [{"a": "b"}] * count}),
}
BOTH = {
    "stop": (MAX_STOP_STRINGS, lambda count: {"stop": ["never"] * count}),
    "stop[0]": (MAX_STOP_CHARACTERS, lambda count: {"stop": ["x" * count]}),
    "stop_token_ids": (MAX_STOP_TOKEN_IDS, lambda count: {"stop_token_ids": [1] * count}),
    "logit_bias": (MAX_LOGIT_BIAS, lambda count: {"logit_bias": {f"{1:0{5 + index}}": 0 for index in range(count)}}),
    "bad_words": (MAX_BAD_WORDS // 2, lambda count: {"bad_words": ["w"] * count}),
    "logprob_token_ids": (MAX_LOGPROB_TOKEN_IDS, lambda count: {"logprob_token_ids": [1] * count}),
    "cache_salt": (1024, lambda count: {"cache_salt": "x" * count}),
    "n": (8, lambda count: {"n": count}),  # of the backend that these tests have
}
ROWS = [("/v1/chat/completions", chat, *row) for row in (CHAT | BOTH).items()]
ROWS += [("/v1/completions", text, *row) for row in BOTH.items()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[2]}")
async def test_e10_every_bound_has_its_name(client, row):
    path, body, field, (most, fields) = row
    at = await client.post(path, json=body(**fields(most), max_tokens=1))
    assert at.status_code == 200 or "length <=" not in at.text, at.text  # that of the context, say
    beyond = await client.post(path, json=body(**fields(most + 1), max_tokens=1))
    assert beyond.status_code == 400
    error = beyond.json()["error"]
    assert error["param"] == field
    assert error["message"].startswith((field, f"{most + 1} choices"))
    assert str(most) in error["message"]


async def test_the_error_says_how_many_there_were(client):
    answer = await client.post("/v1/completions", json=text(stop=["x"] * 70))
    assert answer.json()["error"]["message"] == "stop is an array of 70: Expected `array` of length <= 64"
