"""The line that tells of each HTTP request, where it is asked for."""

import pytest
from fake_backend import chat, make_client, text
from structlog.testing import capture_logs


@pytest.fixture
def lines():
    with capture_logs() as captured:
        yield captured


def access(lines):
    return [line for line in lines if line["event"] == "request"]


async def test_a_generating_request_says_what_was_generated(backend, lines):
    async with make_client(backend, log_requests=True) as client:
        await client.post("/v1/chat/completions", json=chat(n=2, max_tokens=3))
        await client.post("/v1/completions", json=text(stream=True))
    whole, stream = access(lines)
    assert (whole["method"], whole["path"], whole["status"]) == ("POST", "/v1/chat/completions", 200)
    assert (whole["prompt_tokens"], whole["completion_tokens"], whole["cached_tokens"]) == (3, 6, 0)
    assert whole["finish_reasons"] == ["length", "length"]
    assert whole["seconds"] > 0
    assert whole["log_level"] == "info"
    assert (stream["completion_tokens"], stream["finish_reasons"]) == (6, ["stop"])


async def test_what_fails_is_told_and_probes_that_succeed_are_not(backend, lines):
    async with make_client(backend, log_requests=True) as client:
        await client.get("/health")
        await client.get("/nope")
        await client.post("/v1/completions", json={})
        backend.state = backend.state.UNAVAILABLE
        await client.get("/health")
    assert [(line["path"], line["status"]) for line in access(lines)] == [
        ("/nope", 404), ("/v1/completions", 400), ("/health", 503),
    ]  # fmt: skip


async def test_nothing_is_told_unless_asked_for(backend, lines):
    async with make_client(backend) as client:
        await client.post("/v1/completions", json=text())
    assert not access(lines)
