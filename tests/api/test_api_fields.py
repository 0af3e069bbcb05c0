"""Every field of OpenAI's reference is treated as `fields.py` says; `openai_fields.json` has their names."""

import json
from pathlib import Path

import msgspec
import pytest
from fake_backend import chat, text

from actorlm.api.fields import CHAT, COMPLETION, Treatment, without_effect
from actorlm.api.schema_chat import ChatCompletionRequest
from actorlm.api.schema_completions import CompletionRequest

REFERENCE = json.loads((Path(__file__).parent / "openai_fields.json").read_text())
ROUTES = {
    "chat": ("/v1/chat/completions", chat, CHAT, ChatCompletionRequest, "CreateChatCompletionRequest"),
    "completions": ("/v1/completions", text, COMPLETION, CompletionRequest, "CreateCompletionRequest"),
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ACCEPTED = {
    "user": ["someone", "x" * 1_000_000],
    "tools": [[]],
    "tool_choice": ["none", "auto"],
    "response_format": [{"type": "text"}],
    "modalities": [["text"]],
    "function_call": ["none", "auto"],
    "service_tier": ["auto", "default"],
    "reasoning_effort": ["none", "minimal", "low", "medium", "high", "xhigh", "max"],
    "verbosity": ["low", "medium", "high"],
    "parallel_tool_calls": [True, False],
    "store": [True, False],
    "metadata": [{}, {"key": "value"}],
    "safety_identifier": ["id"],
    "prompt_cache_key": ["key"],
    "prompt_cache_retention": ["24h"],
    "prompt_cache_options": [{"ttl": "1h"}],
    "best_of": [1],
    "suffix": [""],
}
REJECTED = {
    "tools": [[TOOL], [{"type": "custom"}], {}],
    "tool_choice": ["required", "some", {"type": "function", "function": {"name": "f"}}, {"type": "allowed_tools"}],
    "response_format": [{"type": "json_object"}, {"type": "json_schema"}, {"type": "xml"}, "json"],
    "modalities": [["audio"], ["text", "audio"]],
    "function_call": [{"name": "f"}],
    "service_tier": ["flex", "priority"],
    "best_of": [0, 2, 1_000_000],
    "suffix": ["end"],
    "audio": [{"voice": "alloy", "format": "wav"}],
    "functions": [[], [{"name": "f"}]],
    "moderation": [{"model": "m"}],
    "prediction": [{"type": "content", "content": "x"}],
    "web_search_options": [{}],
}


@pytest.mark.parametrize("route", ROUTES)
def test_every_field_of_the_reference_is_in_the_table(route):
    _, _, table, _, reference = ROUTES[route]
    assert not set(REFERENCE[reference]) - set(table)


@pytest.mark.parametrize("route", ROUTES)
def test_the_table_and_the_struct_have_the_same_fields(route):
    _, _, table, struct, _ = ROUTES[route]
    assert set(table) == {field.name for field in msgspec.structs.fields(struct)}


@pytest.mark.parametrize("route", ROUTES)
def test_extras_are_marked_in_the_table(route):
    _, _, table, _, reference = ROUTES[route]
    extras = {name for name in table if name not in REFERENCE[reference]}
    assert extras == {name for name, field in table.items() if field.note.startswith("extra")}


@pytest.mark.parametrize("route", ROUTES)
async def test_c12_null_is_like_absent(client, route):
    path, request, table, struct, _ = ROUTES[route]
    required = {field.name for field in msgspec.structs.fields(struct) if field.required}
    for name in table:
        answer = await client.post(path, json=request(**{name: None}))
        assert answer.status_code == (400 if name in required else 200), answer.text
    nothing = dict.fromkeys(set(table) - required)
    assert (await client.post(path, json=request(**nothing))).status_code == 200


@pytest.mark.parametrize("route", ROUTES)
async def test_c12_fields_without_effect_take_any_valid_value(client, route):
    path, request, table, _, _ = ROUTES[route]
    plain = (await client.post(path, json=request())).json()["choices"]
    for name in _treated(table, Treatment.IGNORED, Treatment.NEUTRAL):
        for value in ACCEPTED[name]:
            answer = await client.post(path, json=request(**{name: value}))
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"] == plain


@pytest.mark.parametrize("route", ROUTES)
async def test_c05_other_values_are_refused_by_name(client, backend, route):
    path, request, table, _, _ = ROUTES[route]
    for name in _treated(table, Treatment.REFUSED, Treatment.NEUTRAL):
        for value in REJECTED[name]:
            answer = await client.post(path, json=request(**{name: value}))
            assert answer.status_code == 400, (value, answer.text)
            error = answer.json()["error"]
            assert error["param"] == name
            assert name in error["message"]
            assert error["type"] == "invalid_request_error"
    assert not backend.generations


def _treated(table, *treatments):
    return [name for name, field in table.items() if field.treatment in treatments]


@pytest.mark.parametrize("name", ["nope", "chat_template", "request_id", "prompt_embeds"])
@pytest.mark.parametrize("route", ROUTES)
async def test_e11_unknown_fields_are_refused_by_name(client, route, name):
    path, request, _, _, _ = ROUTES[route]
    answer = await client.post(
        path, json=request(**{name: {"chat_template": "{% for i in range(99999) %}{% endfor %}"}})
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name


def test_the_fields_without_effect_of_a_request_are_known():
    request = msgspec.convert(chat(store=True, user="x", seed=1), ChatCompletionRequest)
    assert without_effect(request, CHAT) == ["user", "store"]
