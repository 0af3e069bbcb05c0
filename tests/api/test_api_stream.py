"""Streams as a client reads them: order, ends, usage, errors. Over a real socket where the wire matters."""

import json

import httpx
import pytest
from fake_backend import chat, make_client, text
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from actorlm.config import HttpConfig
from actorlm.errors import DeadlineExceeded, Interrupted, Overloaded, Poisoned

ROUTES = {"/v1/chat/completions": chat, "/v1/completions": text}


def parsed(body):
    """The events of a stream; fails unless it ends with exactly one [DONE]."""
    assert body.endswith("\n\n")
    lines = body[:-2].split("\n\n")
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    assert lines.count("data: [DONE]") == 1
    return [json.loads(line[6:]) for line in lines[:-1]]


def content(choice):
    return choice["text"] if "text" in choice else choice["delta"].get("content", "")


def joined(events):
    texts = {}
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + content(choice)
    return [texts[index] for index in sorted(texts)]


def whole(answer):
    return [choice["text"] if "text" in choice else choice["message"]["content"] for choice in answer["choices"]]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("fields", [{}, {"n": 3, "seed": 1}, {"max_tokens": 1}, {"max_tokens": 2, "ignore_eos": True}])
async def test_b01_b10_b28_a_stream_is_the_whole_answer_in_pieces(client, backend, path, fields):
    backend.words = lambda one: ["", str(one.sampling.seed), "", "👩‍🚀 日", "", "本"][: 3 + one.sampling.seed % 4]
    request = ROUTES[path](**{"seed": 2} | fields)
    answer = (await client.post(path, json=request)).json()
    events = parsed((await client.post(path, json=request | {"stream": True})).text)
    assert joined(events) == whole(answer)
    for index, choice in enumerate(answer["choices"]):
        reasons = [c["finish_reason"] for event in events for c in event["choices"] if c["index"] == index]
        assert reasons[-1] == choice["finish_reason"]
        assert set(reasons[:-1]) <= {None}
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1


async def test_b26_chat_begins_with_the_role_of_each_choice(client):
    events = parsed((await client.post("/v1/chat/completions", json=chat(stream=True, n=2))).text)
    for index in (0, 1):
        deltas = [c["delta"] for event in events for c in event["choices"] if c["index"] == index]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert all("role" not in delta for delta in deltas[1:])
        assert deltas[-1] == {}


@pytest.mark.parametrize("path", ROUTES)
async def test_b26_headers(client, path):
    answer = await client.post(path, json=ROUTES[path](stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"


async def test_echo_is_the_first_event_of_each_choice(client):
    for fields in ({"prompt": "Hi"}, {"prompt": [72, 105]}, {"max_tokens": 0}):
        events = parsed((await client.post("/v1/completions", json=text(stream=True, echo=True, n=2, **fields))).text)
        for index in (0, 1):
            texts = [content(c) for event in events for c in event["choices"] if c["index"] == index]
            assert texts[0] == "Hi"


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
async def test_b14_no_usage_unless_asked_for(client, path, options):
    events = parsed((await client.post(path, json=ROUTES[path](stream=True, stream_options=options))).text)
    assert all("usage" not in event and event["choices"] for event in events)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"max_tokens": 2}])
async def test_b14_usage_comes_last_and_equals_that_of_the_whole(client, backend, path, fields):
    backend.cached_tokens = 2
    answer = (await client.post(path, json=ROUTES[path](**fields))).json()
    options = {"include_usage": True, "include_obfuscation": True}
    request = ROUTES[path](stream=True, stream_options=options, **fields)
    *others, last = parsed((await client.post(path, json=request)).text)
    assert all(event["usage"] is None and event["choices"] for event in others)
    assert last["choices"] == []
    assert last["usage"] == answer["usage"]
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 2


@pytest.mark.parametrize("path", ROUTES)
async def test_b14_stream_options_without_a_stream(client, path):
    answer = await client.post(path, json=ROUTES[path](stream_options={"include_usage": True}))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "stream_options"


FAILURES = {
    "interrupted": Interrupted("engine-0 died"),
    "poisoned": Poisoned("3 replicas died of it"),
    "deadline_exceeded": DeadlineExceeded("not within 2 s"),
    "overloaded": Overloaded("not read within 5 s"),
    "internal_error": ValueError("secret"),
}


@pytest.fixture
def lines():
    """What is logged, with the request's id as the server's log has it."""
    with capture_logs([merge_contextvars]) as captured:
        yield captured


def told(lines):
    """The ids, codes and levels of all lines, but for one with the traceback of a bug."""
    return [(line.get("request_id"), line.get("code"), line["log_level"]) for line in lines if "exc_info" not in line]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("code", FAILURES)
async def test_b15_an_error_in_mid_stream_is_an_event_and_a_line_in_the_log(client, backend, lines, path, code):
    backend.fail_at = (2, FAILURES[code])
    answer = await client.post(path, json=ROUTES[path](stream=True, n=2), headers={"x-request-id": "mine"})
    assert answer.status_code == 200
    *others, last = parsed(answer.text)
    assert others
    assert set(last) == {"error"}
    assert last["error"]["code"] == code
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert "secret" not in answer.text
    assert all(choice["finish_reason"] is None for event in others for choice in event["choices"])
    assert told(lines) == [("mine", code, "warning")]
    bugs = [line for line in lines if "exc_info" in line]
    assert [line["request_id"] for line in bugs] == (["mine"] if code == "internal_error" else [])


async def test_b15_a_stream_that_is_kept_alive_tells_of_errors_in_the_same_way(backend, lines):
    backend.fail_at = (0, FAILURES["deadline_exceeded"])
    async with make_client(backend, HttpConfig(stream_keep_alive_s=5)) as client:
        answer = await client.post("/v1/completions", json=text(stream=True), headers={"x-request-id": "mine"})
    [event] = parsed(answer.text)
    assert event["error"]["code"] == "deadline_exceeded"
    assert told(lines) == [("mine", "deadline_exceeded", "warning")]


@pytest.mark.parametrize("code", ["interrupted", "poisoned"])
async def test_b15_an_answer_that_is_not_streamed_is_an_error_then(client, backend, lines, code):
    backend.fail_at = (2, FAILURES[code])
    answer = await client.post("/v1/completions", json=text(), headers={"x-request-id": "mine"})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == code
    assert told(lines) == [("mine", code, "warning")]


async def test_b15_a_generation_that_stops_too_early_is_an_error(client, backend):
    backend.words = lambda _: ["a"] * 9
    original = backend.submit

    def submit(*arguments):
        generation = original(*arguments)
        generation.finished = {0}
        return generation

    backend.submit = submit
    assert (await client.post("/v1/completions", json=text())).status_code == 500


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "fields", [{"model": "none"}, {"n": 0}, {"logit_bias": {"999": 1}}, {"stop": 5}, {"max_tokens": -1}]
)
async def test_b16_a_bad_request_for_a_stream_is_an_ordinary_error(client, path, fields):
    answer = await client.post(path, json=ROUTES[path](stream=True) | fields)
    assert answer.status_code in {400, 404}
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["message"]


async def test_b26_every_step_is_one_write_as_soon_as_it_is_there(address, backend):
    backend.hold = {1, 2, 3, 4, 5}
    async with httpx.AsyncClient() as client, client.stream(
        "POST", f"{address}/v1/chat/completions", json=chat(stream=True, n=2)
    ) as answer:  # fmt: skip
        pieces = answer.aiter_raw()
        first = await anext(pieces)
        assert first.count(b"data: ") == 4
        for step in range(1, 6):
            backend.hold.discard(step)
            piece = await anext(pieces)
            assert piece.startswith(b"data: ")
            assert piece.endswith(b"\n\n")
            assert piece.count(b"data: ") == (2 if step < 5 else 4)
        assert await anext(pieces) == b"data: [DONE]\n\n"


async def test_b24_much_is_sent_in_pieces_and_each_that_is_read_counts(client, backend):
    backend.words = lambda _: ("x" * 200_000,)
    events = parsed((await client.post("/v1/completions", json=text(stream=True))).text)
    assert joined(events) == ["x" * 200_000]
    assert backend.generations[0].read_ons == 4


async def test_b33_generations_are_always_ended(client, backend):
    for fields in ({}, {"stream": True}):
        await client.post("/v1/chat/completions", json=chat(**fields))
    assert all(generation.aborted.is_set() for generation in backend.generations)
