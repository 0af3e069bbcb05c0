"""The id of a request is a label: echoed if it is well formed, replaced if not, unique or not."""

import asyncio

import pytest
from fake_backend import chat, text


@pytest.mark.parametrize("given", ["same", "a.b_c-9", "x" * 128])
async def test_b31_a_valid_id_is_echoed(client, backend, given):
    for path, body in (("/v1/chat/completions", chat()), ("/v1/completions", text(stream=True))):
        answer = await client.post(path, json=body, headers={"x-request-id": given})
        assert answer.headers["x-request-id"] == given
    assert backend.trace_ids == [given, given]


@pytest.mark.parametrize("given", ["", "x" * 10_240, "../../x", "a b", "a\tb", "😀".encode(), b"\xff", "a/b"])
async def test_b31_any_other_id_is_replaced(client, given):
    answer = await client.post("/v1/completions", json=text(), headers={"x-request-id": given})
    assert answer.status_code == 200
    assert answer.headers["x-request-id"].startswith("req_")


async def test_b31_two_ids_are_none(client):
    answer = await client.get("/health", headers=[("x-request-id", "a"), ("x-request-id", "b")])
    assert answer.headers["x-request-id"].startswith("req_")


async def test_b31_equal_ids_get_their_own_answers(client, backend):
    backend.words = lambda one: [bytes(one.prompt_ids[1:]).decode(), "!"]

    async def ask(i):
        answer = await client.post("/v1/completions", json=text(prompt=f"p{i}"), headers={"x-request-id": "same"})
        return answer.json()

    answers = await asyncio.gather(*(ask(i) for i in range(50)))
    assert [one["choices"][0]["text"] for one in answers] == [f"p{i}!" for i in range(50)]
    assert len({one["id"] for one in answers}) == 50


async def test_errors_carry_an_id_too(client):
    for answer in (await client.get("/nope"), await client.post("/v1/completions", json={})):
        assert answer.headers["x-request-id"].startswith("req_")
