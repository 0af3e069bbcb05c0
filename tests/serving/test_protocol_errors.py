"""C09, C12: what every error looks like, and fields that SDKs send and nobody needs."""

import json
import signal

import pytest
from exchange import PATHS, endless
from hostile import raw_http, status_of
from openai import OpenAI
from refusals import TYPES, error_of
from tree import in_parallel, until

from actorlm.api.fields import CHAT as CHAT_FIELDS
from actorlm.api.fields import COMPLETION as COMPLETION_FIELDS

pytestmark = [pytest.mark.serving, pytest.mark.timeout(300)]

COMPLETIONS, CHAT = PATHS
JSON = {"content-type": "application/json"}

# C09.


def test_c09_every_error_has_one_form(null_tree):
    client = null_tree.client
    for status, answer in {
        400: client.post(CHAT, json={"model": "null"}),
        404: client.get("/v1/nothing"),
        405: client.get(CHAT),
        413: client.post(CHAT, content=b"x" * 2**25 + b"x", headers=JSON),
        415: client.post(CHAT, content=b"{}", headers={"content-type": "text/plain"}),
    }.items():
        error_of(answer, status)
    assert error_of(client.post(CHAT, json={"model": "other", "messages": []}))["param"] == "messages"
    other = client.post(CHAT, json={"model": "other", "messages": [{"role": "user", "content": "x"}]})
    assert error_of(other, 404)["code"] == "model_not_found"
    assert error_of(client.get("/v1/models/other"), 404)["code"] == "model_not_found"
    for method in ("PUT", "PATCH", "DELETE", "TRACE"):
        for path in (*PATHS, "/health", "/metrics", "/v1/models"):
            assert error_of(client.request(method, path), 405)["code"] == "method_not_allowed"


def test_c09_what_is_no_http(null_tree):
    for data in (
        b"\0\1\2\r\n\r\n",
        b"GET\r\n\r\n",
        b"BREW /pot HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"x" * 100_000,
    ):
        answer = raw_http(null_tree, data)
        assert status_of(answer) == 400, answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    null_tree.sentinel()


def test_c09_no_room_is_429_with_a_time(start):
    """A refusal of a stream is an answer of JSON, not an event."""
    tree = start("--model-impl", "null", "--null-step-ms", "20", "--max-num-seqs", "1", "--max-waiting", "1")
    bodies = [endless(tree, path, max_tokens=40, stream=stream) for path in PATHS for stream in (False, True)] * 3
    answers = in_parallel([lambda b=b: tree.post(CHAT if "messages" in b else COMPLETIONS, b) for b in bodies])
    refusals = [answer for answer in answers if answer.status_code != 200]
    assert len(refusals) < len(bodies)
    assert len(refusals) >= 8
    for answer in refusals:
        assert error_of(answer, 429)["code"] == "overloaded"
    tree.settled()
    tree.sentinel()


def test_c09_a_tree_that_ends_is_503(start):
    tree = start("--model-impl", "null", "--null-step-ms", "20")
    stream = tree.events(COMPLETIONS, endless(tree, max_tokens=2000))
    next(stream)
    tree.process.send_signal(signal.SIGTERM)
    until(lambda: tree.client.get("/ready").status_code == 503, 5)
    for path in (CHAT, COMPLETIONS):
        error_of(tree.post(path, endless(tree, path)), 503)
    error_of(tree.client.get("/ready"), 503)
    assert tree.client.get("/health").status_code == 200


def test_c09_the_statuses_are_all_there_are(null_tree):
    document = null_tree.client.get("/schema/openapi.json").json()
    for path in document["paths"].values():
        for operation in path.values():
            for status, answer in operation["responses"].items():
                assert status == "200" or "ErrorResponse" in json.dumps(answer)
                assert status == "200" or int(status) in TYPES


# C12.

IGNORED = {
    "store": True,
    "metadata": {"a": "b"},
    "parallel_tool_calls": True,
    "reasoning_effort": "low",
    "user": "u",
    "verbosity": "low",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "service_tier": "auto",
}


def test_c12_every_field_may_be_null(null_tree):
    chat = dict.fromkeys(CHAT_FIELDS.keys() - {"model", "messages"})
    assert null_tree.chat("hi", **chat | {"max_tokens": 2})["usage"]["completion_tokens"] <= 2
    text = dict.fromkeys(COMPLETION_FIELDS.keys() - {"model", "prompt"})
    assert null_tree.complete("hi", **text)["usage"]["completion_tokens"] <= 16
    for name in text:
        assert null_tree.complete("hi", **{name: None})


def test_c12_fields_without_effect_are_told_at_debug_alone(start, null_tree):
    debug = start("--model-impl", "null", "--log-level", "debug")
    for tree in (null_tree, debug):
        client = OpenAI(base_url=f"{tree.url}/v1", api_key="none", max_retries=0)
        same = {
            "model": tree.model,
            "messages": [{"role": "user", "content": "hi"}],
            "max_completion_tokens": 5,
            "seed": 1,
        }
        plain = client.chat.completions.create(**same)
        ignored = client.chat.completions.create(**same, **IGNORED, stream_options=None)
        assert plain.choices[0].message.content == ignored.choices[0].message.content
        events = client.chat.completions.create(**same, **IGNORED, stream=True, stream_options={"include_usage": True})
        assert [event.usage for event in events][-1].completion_tokens == plain.usage.completion_tokens
        client.close()
    until(lambda: "parallel_tool_calls" in debug.log, 5)
    assert "parallel_tool_calls" not in null_tree.log
