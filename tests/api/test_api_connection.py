"""Limits of a connection: its head in size, number and time, what is left of a body, and how many there may be."""

import asyncio
import json

import pytest
from fake_backend import serving, text

from actorlm.api import connection
from actorlm.api.app import create_app
from actorlm.api.connection import MAX_HEADERS, MAX_TARGET_BYTES, SURPLUS
from actorlm.config import HttpConfig

HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
MODELS = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"


async def connect(address, data=b""):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rsplit(":", 1)[1]))
    writer.write(data)
    return reader, writer


async def answer(reader):
    """One answer: its status, its headers' text, and its body as JSON."""
    async with asyncio.timeout(5):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].split("\r\n")[0])
        return int(head.split()[1]), head, json.loads(await reader.readexactly(length))


async def closed(reader):
    async with asyncio.timeout(5):
        return await reader.read() == b""


async def ask(address, data):
    """The answer on a connection of its own, which is closed after it."""
    reader, writer = await connect(address, data)
    found = await answer(reader)
    writer.close()
    return found


@pytest.mark.parametrize("piece", [10**6, 100])
async def test_path_and_query_have_a_limit(address, piece):
    for length, status in ((MAX_TARGET_BYTES, 404), (MAX_TARGET_BYTES + 1, 414)):
        data = b"GET /%b HTTP/1.1\r\nhost: x\r\n\r\n" % (b"x" * (length - 1))
        reader, writer = await connect(address)
        for begin in range(0, len(data), piece):
            writer.write(data[begin : begin + piece])
            await asyncio.sleep(0)
        found, head, body = await answer(reader)
        assert found == status
        assert ("connection: close" in head) == (status == 414)
        assert status == 404 or str(MAX_TARGET_BYTES) in body["error"]["message"]
        writer.close()


async def test_headers_have_a_limit_in_number(address):
    for count, status in ((MAX_HEADERS, 200), (MAX_HEADERS + 1, 431)):
        data = b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * count + b"\r\n"
        found, head, body = await ask(address, data)
        assert found == status
        assert status == 200 or (
            body["error"]["code"] == "headers_too_large" and str(MAX_HEADERS) in body["error"]["message"]
        )
        assert status == 200 or "connection: close" in head


async def test_headers_are_counted_for_each_request(address):
    reader, writer = await connect(address)
    for _ in range(3):
        writer.write(b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * MAX_HEADERS + b"\r\n")
        assert (await answer(reader))[0] == 200
    writer.close()


async def test_a_head_has_its_time(address, monkeypatch):
    """However often another byte comes."""
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.3)
    reader, writer = await connect(address, b"GET /health HTTP/1.1\r\n")
    answered = asyncio.create_task(answer(reader))
    while not answered.done():
        writer.write(b"a: b\r\n")
        await asyncio.sleep(0.05)
    status, head, body = await answered
    assert (status, body["error"]["code"]) == (408, "request_timeout")
    assert "connection: close" in head
    writer.close()


@pytest.mark.parametrize("data", [b"", HEALTH])
async def test_who_says_nothing_is_left(address, monkeypatch, data):
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.2)
    reader, writer = await connect(address, data)
    if data:
        assert (await answer(reader))[0] == 200
        writer.write(b"\r\n")  # ends uvicorn's own wait, and begins no request
    assert await closed(reader)
    writer.close()


async def test_the_rest_of_a_body_has_its_time(address, backend, monkeypatch):
    """That of a request which is answered already, because nobody wanted to read it."""
    monkeypatch.setattr(connection, "LEFTOVER_TIMEOUT_S", 0.2)
    reader, writer = await connect(address, b"POST /nope HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
    assert (await answer(reader))[0] == 404
    end = asyncio.create_task(closed(reader))
    while not end.done():
        writer.write(b"x")
        await asyncio.sleep(0.02)
    writer.close()


async def test_a_connection_goes_on_after_the_rest_of_a_body(address, monkeypatch):
    monkeypatch.setattr(connection, "LEFTOVER_TIMEOUT_S", 0.2)
    reader, writer = await connect(address, b"POST /nope HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n12345")
    assert (await answer(reader))[0] == 404
    writer.write(b"67890")
    await asyncio.sleep(0.4)
    writer.write(HEALTH)
    assert (await answer(reader))[0] == 200
    writer.close()


@pytest.mark.parametrize("piece", [b"", b" "])
async def test_a_slow_body_is_refused(backend, piece):
    """One that stands still, and one of which another byte comes every now and then."""
    app = create_app(backend, HttpConfig(), body_timeout_s=0.2)
    async with serving(app) as address:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        reader, writer = await connect(address, head + b"content-length: 1000\r\n\r\n")
        answered = asyncio.create_task(answer(reader))
        begin = asyncio.get_running_loop().time()
        while not answered.done():
            writer.write(piece)
            await asyncio.sleep(0.05)
        status, head, body = await answered
        assert (status, body["error"]["code"]) == (408, "request_timeout")
        assert "connection: close" in head
        assert asyncio.get_running_loop().time() - begin >= (0.8 if piece else 0.2) - 0.05
        assert not backend.generations
        writer.close()


async def test_a_large_body_may_take_longer(backend):
    """What has arrived buys time, so that a slow network is no attack."""
    app = create_app(backend, HttpConfig(), body_timeout_s=0.1)
    async with serving(app) as address:
        body = json.dumps(text(user="x" * 60_000, max_tokens=1)).encode()
        head = (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        )
        reader, writer = await connect(address, head % len(body))
        for begin in range(0, len(body), 4000):
            writer.write(body[begin : begin + 4000])
            await asyncio.sleep(0.05)
        assert (await answer(reader))[0] == 200
        writer.close()


@pytest.fixture
async def small(backend):
    """A server of two connections."""
    async with serving(create_app(backend, HttpConfig(api_key="k")), max_connections=2) as one:
        yield one


async def open_connections(address, count):
    """Connections that the server has taken: it has answered each once, or has refused it."""
    made = []
    for _ in range(count):
        reader, writer = await connect(address)
        made.append((reader, writer))
    await asyncio.sleep(0.1)
    return made


async def test_one_connection_more_is_answered_503_and_closed(small):
    kept = await open_connections(small, 2)
    reader, writer = await connect(small, MODELS)
    status, head, body = await answer(reader)
    assert (status, body["error"]["code"]) == (503, "too_many_connections")
    assert "max_connections" in body["error"]["message"]
    assert "retry-after: " in head
    assert "connection: close" in head
    assert await closed(reader)
    for reader, writer in kept:
        writer.write(HEALTH)
        assert (await answer(reader))[0] == 200
        writer.close()
    await asyncio.sleep(0.1)
    assert (await ask(small, MODELS))[0] == 401


async def test_liveness_is_answered_beyond_the_limit(small):
    """Else a probe would have a busy service killed."""
    kept = await open_connections(small, 2)
    reader, writer = await connect(small, HEALTH + HEALTH)
    status, head, _ = await answer(reader)
    assert status == 200
    assert "connection: close" in head
    assert await closed(reader)
    for _, other in [*kept, (reader, writer)]:
        other.close()


async def test_far_beyond_the_limit_nothing_is_read(small):
    kept = await open_connections(small, 2 + SURPLUS)
    for _ in range(3):
        status, head, body = await ask(small, b"")
        assert (status, body["error"]["code"]) == (503, "too_many_connections")
        assert "connection: close" in head
    for _, writer in kept:
        writer.close()
    await asyncio.sleep(0.1)
    assert (await ask(small, HEALTH))[0] == 200
