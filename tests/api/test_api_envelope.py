"""The time that a request gives itself: taken from a header or an argument, or refused by name."""

import pytest

from actorlm.api.direct import DirectRequests
from actorlm.api.envelope import MAX_TIMEOUT_S
from actorlm.errors import BadRequest, DeadlineExceeded, QueueTimeout, RateLimited

PATHS = {"/v1/completions": {"prompt": "Hi"}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]}}


@pytest.mark.parametrize("path", PATHS)
async def test_a_request_may_say_how_long_it_may_take(client, backend, path):
    for headers in ({}, {"X-Request-Timeout": "30"}, {"x-request-timeout": "0.25"}):
        body = {"model": "org/fake", "max_tokens": 1} | PATHS[path]
        assert (await client.post(path, json=body, headers=headers)).status_code == 200
    assert [one.timeout_s for one in backend.envelopes] == [None, 30.0, 0.25]


@pytest.mark.parametrize("seconds", ["0", "-1", "1e3", "nan", "", "5s", "86401", "0.0000001"])
async def test_a_time_that_is_none_is_refused_by_header_value_and_range(client, backend, seconds):
    answer = await client.post(
        "/v1/completions", json={"model": "org/fake", "prompt": "Hi"}, headers={"X-Request-Timeout": seconds}
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "X-Request-Timeout")
    assert str(MAX_TIMEOUT_S) in error["message"]
    assert not backend.generations


async def test_the_argument_of_the_client_is_checked_alike(backend):
    direct = DirectRequests(backend, lambda: 9)
    body = b'{"model": "org/fake", "prompt": "Hi"}'
    await direct.complete(body, "", timeout_s=2.5)
    assert backend.envelopes[0].timeout_s == 2.5
    for seconds in (0.0, -1.0, float("nan"), float("inf"), 1e9):
        with pytest.raises(BadRequest, match="above 0") as caught:
            await direct.complete(body, "", timeout_s=seconds)
        assert caught.value.param == "timeout_s"


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (DeadlineExceeded("late"), 504, {"x-should-retry": "false"}),
        (QueueTimeout("late"), 504, {"retry-after": "2"}),
        (RateLimited("much", retry_after=17), 429, {"retry-after": "17"}),
    ],
    ids=["deadline", "queue", "limit"],
)
async def test_what_a_client_should_do_next_is_in_the_headers(client, backend, error, status, headers):
    backend.refusal = error
    answer = await client.post("/v1/completions", json={"model": "org/fake", "prompt": "Hi"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, error.code)
    assert answer.headers.items() >= headers.items()
    assert ("retry-after" in answer.headers) == ("retry-after" in headers)
