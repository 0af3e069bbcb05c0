"""Bodies: what is no valid JSON of the right form is refused, never a fault of the server."""

import asyncio
import json

import httpx
import msgspec
import pytest
from fake_backend import chat, make_client, serving, text

from actorlm.api.app import create_app
from actorlm.api.body import decode
from actorlm.api.schema_completions import CompletionRequest
from actorlm.config import HttpConfig
from actorlm.errors import BadRequest

JSON = {"content-type": "application/json"}
ROUTES = ["/v1/chat/completions", "/v1/completions"]
VALID = json.dumps(chat()).encode()
USER = b'"messages":[{"role":"user","content":"x"}]}'

MALFORMED = {
    "empty": b"",
    "space": b"  ",
    "array": b"[]",
    "null": b"null",
    "string": b'"x"',
    "number": b"1",
    "trailing comma": VALID[:-1] + b",}",
    "trailing bytes": VALID + b"x",
    "truncated": VALID[:-3],
    "brackets": b"[" * 200_000,
    "brackets in a field": b'{"model":"org/fake","metadata":{"a":' + b"[" * 200_000,
    "braces in a tool": b'{"tools":[{"type":"function","function":{"parameters":' + b'{"a":' * 200_000,
    "duplicate keys": b'{"model":"a","model":"org/fake","messages":[{"role":"user","content":"x"}]}',
    "duplicate keys within": b'{"model":"org/fake","messages":[{"role":"user","content":"x","content":"y"}]}',
    "lone surrogate in content": b'{"model":"org/fake","messages":[{"role":"user","content":"\\ud800"}]}',
    "lone surrogate before text": b'{"model":"org/fake","messages":[{"role":"user","content":"\\udc00 more"}]}',
    "lone surrogate in role": b'{"model":"org/fake","messages":[{"role":"\\ud800","content":"x"}]}',
    "lone surrogate in model": b'{"model":"\\ud800","messages":[{"role":"user","content":"x"}]}',
    "lone surrogate in stop": b'{"model":"org/fake","stop":"\\ud800","messages":[{"role":"user","content":"x"}]}',
    "lone surrogate in a key": b'{"model":"org/fake","metadata":{"\\ud800":"x"},' + USER,
    "invalid UTF-8": b'{"model":"org/fake","messages":[{"role":"user","content":"\xff\xfe"}]}',
    "overlong UTF-8": b'{"model":"org/fake","messages":[{"role":"user","content":"\xc0\x80"}]}',
    "surrogate in UTF-8": b'{"model":"org/fake","messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
    "UTF-16": json.dumps(chat()).encode("utf-16"),
    "UTF-32": json.dumps(chat()).encode("utf-32"),
    "byte order mark": b"\xef\xbb\xbf" + VALID,
    "raw NUL": VALID.replace(b"Hi", b"H\x00"),
    "NaN": b'{"model":"org/fake","temperature":NaN,"messages":[{"role":"user","content":"x"}]}',
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("path", ROUTES)
async def test_c07_c08_malformed_bodies_are_400(client, backend, path, name):
    answer = await client.post(path, content=MALFORMED[name], headers=JSON)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) <= 500
    error["message"].encode()
    assert not backend.generations
    assert (await client.post(ROUTES[0], json=chat())).status_code == 200


async def test_c07_nul_escaped_is_text(client, backend):
    answer = await client.post("/v1/completions", content=rb'{"model":"org/fake","prompt":"a\u0000b"}', headers=JSON)
    assert answer.status_code == 200
    assert backend.submissions[0].prompt_ids[1:] == [97, 0, 98]


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {},
        JSON | {"content-encoding": "gzip"},
        JSON | {"content-encoding": "br"},
    ],
)
@pytest.mark.parametrize("path", ROUTES)
async def test_c08_e21_other_media_are_415(client, path, headers):
    answer = await client.post(path, content=VALID, headers=headers)
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "unsupported_media_type"


async def test_e21_a_body_of_another_kind_is_refused_unread(backend):
    async with serving(create_app(backend, HttpConfig())) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 30000000\r\n"
            b"content-type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
        )
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        writer.close()
    assert head.startswith(b"HTTP/1.1 415")


@pytest.mark.parametrize("media", ["application/json", "Application/JSON; charset=utf-8"])
async def test_json_is_taken_with_parameters(client, media):
    assert (await client.post(ROUTES[0], content=VALID, headers={"content-type": media})).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_c22_bodies_over_the_limit_are_413_and_the_connection_stays_usable(backend, chunked):
    app = create_app(backend, HttpConfig(max_body_mib=1))

    async def pieces(size):
        for _ in range(0, size, 65_536):
            yield b"x" * 65_536

    async with serving(app) as url, httpx.AsyncClient(base_url=url) as client:
        for size in (2**20 + 1, 9 * 2**20):
            content = pieces(size) if chunked else b"x" * size
            answer = await client.post("/v1/completions", content=content, headers=JSON)
            assert answer.status_code == 413
            assert answer.json()["error"]["code"] == "request_too_large"
            assert (await client.post("/v1/completions", json=text())).status_code == 200
        largest = json.dumps(text()).encode().ljust(2**20)
        assert (await client.post("/v1/completions", content=largest, headers=JSON)).status_code == 200


async def test_c08_a_body_that_stands_still_is_408(backend):
    app = create_app(backend, HttpConfig(), body_timeout_s=0.1)
    async with serving(app) as url:
        port = int(url.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
        )
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == "request_timeout"


async def test_errors_never_grow_with_the_request(client):
    answer = await client.post("/v1/completions", json=text(**{"x" * 100_000: 1}))
    assert answer.status_code == 400
    assert len(answer.content) < 1000


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat(messages=[{"role": "robot", "content": "x"}]), "messages[0].role"),
        (chat(messages=[{"content": "x"}]), "messages[0].role"),
        (chat(messages=[{"role": "user", "content": 5}]), "messages[0].content"),
        (chat(messages=[{"role": "user", "content": "x"}, {"role": "user", "extra": 5}]), "messages[1].extra"),
        (chat(logit_bias={"5": 1000}), "logit_bias"),
        (chat(stop=["a", ""]), "stop[1]"),
        ({"messages": [{"role": "user", "content": "x"}]}, "model"),
        ({"model": "org/fake"}, "messages"),
    ],
)
async def test_c09_param_is_the_path_of_the_field(client, body, param):
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_equal_keys_in_different_objects_are_fine():
    request = decode(b'{"model":"a","prompt":"b","logit_bias":{"1":1},"stream_options":{}}', CompletionRequest)
    assert request.model == "a"


def test_a_late_duplicate_among_many_keys_is_found_fast():
    keys = [f'"{i}":0' for i in range(1000)] + ['"999":1']
    body = f'{{"model":"a","prompt":"b","logit_bias":{{{",".join(keys)}}}}}'.encode()
    with pytest.raises(BadRequest, match="999 twice"):
        decode(body, CompletionRequest)


async def test_requests_are_strict_about_types(client):
    for value in ("5", True, 1.5, [], {}):
        answer = await client.post("/v1/completions", json=text(max_tokens=value))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "max_tokens"


async def test_a_body_in_pieces_is_one_body(backend):
    async with make_client(backend) as client:
        body = msgspec.json.encode(text())

        async def pieces():
            for i in range(0, len(body), 7):
                yield body[i : i + 7]

        assert (await client.post("/v1/completions", content=pieces(), headers=JSON)).status_code == 200
