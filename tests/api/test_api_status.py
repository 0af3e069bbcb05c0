"""Liveness, readiness, and what each state of the tree lets through."""

import pytest
from fake_backend import chat, make_client, text

from actorlm import __version__
from actorlm.config import HttpConfig
from actorlm.messages.actor import TreeState

EXPECTED = {
    TreeState.STARTING: (503, 503, 503, 503),
    TreeState.READY: (200, 200, 200, 200),
    TreeState.DEGRADED: (200, 200, 200, 200),
    TreeState.LEAVING: (200, 503, 200, 200),
    TreeState.DRAINING: (200, 503, 200, 503),
    TreeState.UNAVAILABLE: (503, 503, 503, 503),
}


@pytest.mark.parametrize("state", TreeState)
async def test_a09_a36_a38_states_show_in_every_route(client, backend, state):
    backend.state = state
    health, ready, others, generating = EXPECTED[state]
    for path, status in (("/health", health), ("/ready", ready), ("/v1/models", others), ("/metrics", others)):
        answer = await client.get(path)
        assert answer.status_code == status, path
        if status == 503:
            assert answer.json()["error"]["code"] == "unavailable"
            assert int(answer.headers["retry-after"]) > 0
    for path, body in (("/v1/chat/completions", chat(stream=True)), ("/v1/completions", text())):
        assert (await client.post(path, json=body)).status_code == generating
    assert (await client.get("/version")).json() == {"version": __version__}


@pytest.mark.parametrize("state", [TreeState.READY, TreeState.DEGRADED, TreeState.DRAINING])
async def test_a29_health_tells_the_state(client, backend, state):
    backend.state = state
    assert (await client.get("/health")).json() == {"status": state.value}


async def test_a09_a_request_is_refused_before_its_body_is_looked_at(client, backend):
    backend.state = TreeState.DRAINING
    answer = await client.post("/v1/completions", content=b"garbage")
    assert answer.status_code == 503


async def test_head_of_health_and_readiness(client):
    for path in ("/health", "/ready"):
        answer = await client.head(path)
        assert answer.status_code == 200
        assert answer.content == b""


async def test_metrics_are_prometheus_text(client):
    answer = await client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.text == "actorlm:num_requests_running 0\n"


async def test_models(client):
    model = {"id": "org/fake", "object": "model", "created": 1_700_000_000, "owned_by": "actorlm", "max_model_len": 64}
    assert (await client.get("/v1/models")).json() == {"object": "list", "data": [model]}
    assert (await client.get("/v1/models/org/fake")).json() == model
    assert (await client.get("/v1/models/org%2Ffake")).json() == model
    for path in ("/v1/models/fake", "/v1/models/org", "/v1/models/org/fake/x"):
        answer = await client.get(path)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/nope", 404),
        ("GET", "/docs", 404),
        ("GET", "/schema", 404),
        ("GET", "/schema/", 404),
        ("GET", "/schema/nope", 404),
        ("GET", "/schema/openapi.yaml", 404),
        ("GET", "/v1/completions", 405),
        ("PUT", "/v1/models", 405),
        ("DELETE", "/v1/models/org/fake", 405),
        ("POST", "/health", 405),
        ("PROPFIND", "/health", 405),
    ],
)
async def test_c09_what_litestar_refuses_has_openais_shape(client, method, path, status):
    answer = await client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert path in answer.json()["error"]["message"]
    assert ("allow" in answer.headers) == (status == 405)


async def test_e21_a_strange_host_is_no_fault(client):
    for host in ("evil", "evil:99999", "a b", ""):
        answer = await client.get("/health", headers={"host": host})
        assert answer.status_code in {200, 400}
        assert set(answer.json()) in ({"status"}, {"error"})


async def test_e23_no_cors(backend):
    async with make_client(backend, HttpConfig(api_key="k")) as client:
        origin = {"origin": "http://evil", "access-control-request-method": "POST"}
        for answer in (
            await client.options("/v1/chat/completions", headers=origin),
            await client.get("/health", headers=origin),
        ):
            assert not [name for name in answer.headers if name.startswith("access-control")]
        assert (await client.options("/v1/chat/completions", headers=origin)).status_code == 401
