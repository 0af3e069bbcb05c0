"""The generating routes without HTTP begin what the routes begin, and raise what they answer."""

import json

import pytest

from actorlm.api.direct import ONLY_HTTP, DirectRequests
from actorlm.errors import ActorlmError, BadRequest, Unavailable
from actorlm.messages.actor import TreeState

TURNS = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def direct(backend):
    return DirectRequests(backend, lambda: 9)


def body(**fields):
    return json.dumps({"model": "org/fake"} | fields).encode()


async def texts(begun):
    found = {}
    async for deltas in begun.generation:
        for delta in deltas:
            begun.tally.add(delta)
            found[delta.choice] = found.get(delta.choice, "") + delta.text
    return found


@pytest.mark.parametrize("route", ["complete", "chat"])
async def test_a_request_is_begun_and_counted(direct, backend, route):
    about = {"prompt": "Hi"} if route == "complete" else {"messages": TURNS}
    begun = await getattr(direct, route)(body(**about, n=2, max_tokens=3, temperature=0.5), "trace-1")
    assert await texts(begun) == {0: "Hello, ", 1: "Hello, "}
    assert begun.tally.usage().completion_tokens == 6
    [generation] = backend.generations
    first, second = generation.submissions
    assert first.sampling.temperature == 0.5
    assert first.sampling.seed == 9
    assert second.sampling.seed != 9
    assert backend.trace_ids == ["trace-1"]


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b"{", b'{"prompt": "x", "prompt": "y"}', b"\xff", b"[" * 10**5]
)
async def test_c08_bodies_that_are_no_request(direct, content):
    for begin in (direct.complete, direct.chat):
        with pytest.raises(BadRequest):
            await begin(content, "")


@pytest.mark.parametrize("name", ["stream", "echo"])
async def test_fields_of_http_alone_are_refused_by_name(direct, name):
    assert name in ONLY_HTTP
    with pytest.raises(BadRequest, match="only HTTP") as caught:
        await direct.complete(body(prompt="x", **{name: True}), "")
    assert caught.value.param == name
    await direct.complete(body(prompt="x", **{name: False}), "")


async def test_c09_an_error_is_no_larger_than_over_http(direct):
    with pytest.raises(BadRequest) as caught:
        await direct.complete(body(prompt="x", **{"x" * 10_000: 1}), "")
    assert len(caught.value.message) <= 500
    assert len(caught.value.param) <= 100


async def test_nothing_is_begun_while_the_service_is_not_ready(direct, backend):
    backend.state = TreeState.DRAINING
    with pytest.raises(Unavailable, match="draining"):
        await direct.complete(body(prompt="x"), "")


async def test_a_fault_of_ours_is_an_internal_error(direct, backend):
    backend.words = None
    backend.refusal = None

    async def broken(*_, **__):
        raise KeyError("secret")

    backend.encode = broken
    with pytest.raises(ActorlmError) as caught:
        await direct.complete(body(prompt="x"), "")
    assert caught.value.code == "internal_error"
    assert "secret" not in caught.value.message
