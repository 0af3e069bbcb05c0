"""B25: streams that are silent for a while are kept alive, if the server is told so."""

import asyncio

import httpx
import pytest
from fake_backend import chat, serving, text
from openai import AsyncOpenAI
from test_api_stream import joined, parsed, whole

from actorlm.api.app import create_app
from actorlm.config import HttpConfig
from actorlm.errors import Overloaded

ROUTES = [("/v1/chat/completions", chat), ("/v1/completions", text)]
COMMENT = ": keep-alive"


@pytest.fixture
async def url(backend):
    async with serving(create_app(backend, HttpConfig(stream_keep_alive_s=0.02))) as one:
        yield one


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_b25_headers_come_at_once_and_comments_between_events(backend, url, path, body):
    backend.hold = {0}
    async with httpx.AsyncClient() as client:
        async with client.stream("POST", url + path, json=body(stream=True)) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines, seen = answer.aiter_lines(), []
            while seen.count(COMMENT) < 3:
                seen.append(await anext(lines))
            backend.hold = {3}
            await asyncio.sleep(0.1)
            backend.hold = set()
            seen += [line async for line in lines]
        plain = await client.post(url + path, json=body())
    assert set(seen[1::2]) == {""}
    first = next(index for index, line in enumerate(seen) if line.startswith("data: "))
    assert COMMENT in seen[first:], "the pause between two events is silent"
    events = "".join(f"{line}\n\n" for line in seen[::2] if line != COMMENT)
    assert joined(parsed(events)) == whole(plain.json())


async def test_b25_the_sdk_ignores_comments(backend, url):
    backend.hold = {0}
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as sdk:
        stream = await sdk.completions.create(**text(), stream=True)
        await asyncio.sleep(0.1)
        backend.hold = set()
        pieces = [event.choices[0].text async for event in stream]
    assert "".join(pieces) == "Hello, wörld!"


async def test_b25_an_answer_that_is_no_stream_waits_for_its_end(backend, url):
    backend.hold = {0}
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(f"{url}/v1/completions", json=text(), timeout=0.2)


async def test_b25_a_refusal_by_the_engine_is_an_event(backend, url):
    backend.fail_at = (0, Overloaded("full"))
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{url}/v1/completions", json=text(stream=True))
    assert answer.status_code == 200
    assert parsed(answer.text)[-1]["error"]["code"] == "overloaded"


async def test_b25_without_the_option_nothing_is_said(client, backend):
    backend.hold = {1}
    asyncio.get_running_loop().call_later(0.1, backend.hold.clear)
    answer = await client.post("/v1/completions", json=text(stream=True))
    assert COMMENT not in answer.text
