"""The API key guards every route but liveness."""

import httpx
import pytest
from fake_backend import chat, make_client, serving

from actorlm.api.app import create_app
from actorlm.config import HttpConfig
from actorlm.errors import ConfigError

KEY = "sk-clé"
GOOD = {"authorization": "Bearer sk-clé".encode()}
PATHS = [
    "/", "/ready", "/version", "/metrics", "/schema", "/schema/openapi.json", "/docs", "/tokenize", "/nope",
    "/v1/models", "/v1/models/", "//v1/models", "/v1/%2e%2e/v1/models", "/V1/MODELS", "/v1/models/x",
    "/v1/chat/completions", "/v1/completions",
    "/health/", "//health", "/Health", "/health/x", "/health%2f", "/x/%2e%2e/health", "/%68ealth/x",
]  # fmt: skip
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"]


@pytest.fixture
async def guarded(backend):
    async with make_client(backend, HttpConfig(api_key=KEY)) as client:
        yield client


@pytest.mark.parametrize("method", METHODS)
async def test_e15_every_route_and_method_needs_the_key(guarded, method):
    for path in PATHS:
        url = httpx.URL("http://test", raw_path=path.encode())
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": KEY.encode()}):
            answer = await guarded.request(method, url, headers=headers)
            assert answer.status_code == 401, path
        answer = await guarded.request(method, url, headers=GOOD)
        assert answer.status_code != 401, path


async def test_e15_only_get_and_head_of_health_go_without(guarded):
    assert (await guarded.get("/health")).status_code == 200
    assert (await guarded.head("/health")).status_code == 200
    for method in set(METHODS) - {"GET", "HEAD"}:
        assert (await guarded.request(method, "/health")).status_code == 401


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("Bearer sk-clé", 200),
        ("bearer sk-clé", 200),
        ("BEARER  sk-clé ", 200),
        ("sk-clé", 401),
        ("Basic sk-clé", 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        ("Bearer sk-clé2", 401),
        ("Bearer sk-cl", 401),
        ("Bearersk-clé", 401),
        ("", 401),
    ],
)
async def test_e15_forms_of_the_header(guarded, value, status):
    answer = await guarded.get("/v1/models", headers={"authorization": value.encode()})
    assert answer.status_code == status
    if status == 401:
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}  # c09
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"


async def test_e15_two_headers_and_queries_are_no_keys(guarded):
    two = [("authorization", GOOD["authorization"]), ("authorization", GOOD["authorization"])]
    assert (await guarded.get("/v1/models", headers=two)).status_code == 401
    for name in ("api_key", "key", "authorization", "access_token"):
        assert (await guarded.get("/v1/models", params={name: KEY})).status_code == 401


async def test_e15_a_wrong_key_learns_nothing_of_the_state(guarded, backend):
    answer = await guarded.post("/v1/chat/completions", json=chat(model="unknown"))
    assert answer.status_code == 401


@pytest.mark.parametrize("key", ["", " ", "\t"])
def test_e15_an_empty_key_is_an_error_at_the_start(backend, key):
    with pytest.raises(ConfigError, match="api_key"):
        create_app(backend, HttpConfig(api_key=key))


async def test_e15_over_a_socket_as_well(backend):
    async with serving(create_app(backend, HttpConfig(api_key=KEY))) as url, httpx.AsyncClient() as client:
        upgrade = {
            "connection": "upgrade",
            "upgrade": "websocket",
            "sec-websocket-key": "x",
            "sec-websocket-version": "13",
        }
        for headers, status in (({}, 401), (upgrade, 401), (GOOD, 200)):
            assert (await client.get(f"{url}/v1/models", headers=headers)).status_code == status
        assert (await client.get(f"{url}/health")).status_code == 200


async def test_without_a_key_everybody_is_served(client):
    assert (await client.get("/v1/models")).status_code == 200
