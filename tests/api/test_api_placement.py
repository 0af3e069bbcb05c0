"""The headers that choose a replica, and the arguments that do so over ZeroMQ: taken, or refused by name."""

import httpx
import pytest

from actorlm.api.direct import DirectRequests
from actorlm.api.placement import check_placement
from actorlm.api.ports import ANYWHERE, Limits, Placement
from actorlm.errors import BadRequest

LIMITS = Limits(64, 8, replicas=4)
PATHS = {"/v1/completions": {"prompt": "Hi"}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]}}


@pytest.fixture
def ask(backend, client):
    backend.limits = LIMITS

    async def post(path, headers, **fields):
        body = {"model": "org/fake", "max_tokens": 1} | PATHS[path] | fields
        return await client.post(path, json=body, headers=headers)

    return post


@pytest.mark.parametrize("path", PATHS)
async def test_headers_go_with_the_request(ask, backend, path):
    for headers in ({}, {"X-Session-ID": "a/b:c"}, {"x-session-id": "~" * 128}, {"X-data-parallel-rank": "3"}):
        assert (await ask(path, headers, n=2)).status_code == 200
    assert (await ask(path, {"X-Session-ID": "s", "X-DATA-PARALLEL-RANK": "0"}, stream=True)).status_code == 200
    assert backend.placements == [
        ANYWHERE,
        Placement("a/b:c"),
        Placement("~" * 128),
        Placement(replica=3),
        Placement("s", 0),
    ]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "number", ["4", "-1", "+1", "two", "1.0", "0x1", "1 2", "", "9" * 30, "1_0", "\u0661".encode()]
)
async def test_a_replica_out_of_range_is_refused_by_header_value_and_range(ask, backend, path, number):
    answer = await ask(path, {b"X-data-parallel-rank": number if isinstance(number, bytes) else number.encode()})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "X-data-parallel-rank")
    assert "from 0 to 3" in error["message"]
    assert "'" in error["message"], "the value is quoted"
    assert not backend.generations


@pytest.mark.parametrize("session", ["", "x" * 129, "a b", b"\xe4", b"a\tb"])
async def test_a_session_that_is_none_is_refused(ask, backend, session):
    for path in PATHS:
        answer = await ask(path, {b"X-Session-ID": session if isinstance(session, bytes) else session.encode()})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "X-Session-ID")
    assert not backend.generations


@pytest.mark.parametrize("name", ["X-Session-ID", "X-data-parallel-rank"])
async def test_a_header_that_comes_twice_is_refused(ask, name):
    answer = await ask("/v1/completions", httpx.Headers([(name, "1"), (name, "1")]))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


async def test_arguments_of_the_client_are_checked_like_headers(backend):
    backend.limits = LIMITS
    direct = DirectRequests(backend, lambda: 9)
    body = b'{"model": "org/fake", "prompt": "Hi"}'
    await direct.complete(body, "", "s", 3)
    await direct.complete(body, "")
    assert backend.placements == [Placement("s", 3), ANYWHERE]
    for session, replica, param in (("", 4, "replica"), ("", -1, "replica"), ("a b", None, "session")):
        with pytest.raises(BadRequest) as caught:
            await direct.complete(body, "", session, replica)
        assert caught.value.param == param
    assert check_placement("", None, LIMITS) == ANYWHERE


async def test_the_document_tells_of_the_headers(client):
    document = (await client.get("/schema/openapi.json")).json()
    for path in PATHS:
        parameters = {one["name"]: one for one in document["paths"][path]["post"]["parameters"]}
        assert parameters["X-Session-ID"]["in"] == "header"
        assert parameters["X-data-parallel-rank"]["schema"] == {"type": "integer", "minimum": 0}
