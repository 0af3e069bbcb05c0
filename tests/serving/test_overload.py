"""More than may wait is refused at once, and what was accepted is served."""

import hashlib
import time
from contextlib import ExitStack, closing

import pytest
from asking import connected, read
from exchange import PATHS, Exchange, endless
from refusals import error_of
from streaming import running
from tree import PATIENCE, until

from actorlm.errors import DeadlineExceeded, QueueTimeout

pytestmark = [pytest.mark.serving]

NULL = ("--model-impl", "null", "--null-step-ms", "20")
COMPLETIONS = PATHS[0]


def waiting(tree):
    """Requests that wait, by replica."""
    return [value for (name, _), value in sorted(tree.metrics().items()) if name == "num_requests_waiting"]


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_eleventh_that_would_wait_is_refused_at_once(start, replicas):
    """With two replicas there is room in one or the other until both are full, also for those of one session."""
    tree = start(*NULL, "--dp", replicas, "--max-num-seqs", 1, "--max-waiting", 10)
    body = endless(tree, stream=True, max_tokens=8)
    with ExitStack() as stack:
        long = [(body | {"max_tokens": 600}, {"x-data-parallel-rank": str(replica)}) for replica in range(replicas)]
        short = [(body, {"x-session-id": "one"})] * 10 * replicas
        accepted = [stack.enter_context(closing(Exchange(tree, COMPLETIONS, *one))) for one in long + short]
        until(lambda: waiting(tree) == [10] * replicas, 10)
        error = error_of(tree.post(COMPLETIONS, body), 429)
        assert waiting(tree) == [10] * replicas, "the refusal waited for somebody"
        assert (error["code"], "max_waiting is 10" in error["message"]) == ("overloaded", True)
        for exchange in accepted:
            assert exchange.response.status == 200
            *_, done = exchange.raw_events()
            assert done == b"data: [DONE]\n\n"
    tree.settled()


def test_tokens_that_wait_are_bounded_too(start):
    tree = start(*NULL, "--max-num-seqs", 1, "--max-waiting-tokens", 100)
    body = endless(tree, stream=True, prompt=[1] * 60)
    with ExitStack() as stack:
        for count in (0, 1):
            stack.enter_context(closing(Exchange(tree, COMPLETIONS, body)))
            until(lambda: waiting(tree) == [count], 10)  # noqa: B023 - called before the next turn
        assert tree.total("num_waiting_tokens") == 60
        error = error_of(tree.post(COMPLETIONS, body), 429)
        assert "max_waiting_tokens, 100" in error["message"]
        stack.enter_context(closing(Exchange(tree, COMPLETIONS, body | {"prompt": [1] * 40})))
        until(lambda: waiting(tree) == [2], 10)
    tree.settled()


# Time limits.


@pytest.fixture(scope="module")
def impatient_tree(tree_of):
    return tree_of(*NULL, "--max-num-seqs", 1, "--queue-timeout-s", 1, "--request-timeout-s", 5)


def test_a_request_s_own_time_ends_it_whole_or_streamed(impatient_tree):
    tree = impatient_tree
    for path in PATHS:
        answer = tree.post(path, endless(tree, path), headers={"X-Request-Timeout": "0.5"})
        error = error_of(answer, 504)
        assert (error["code"], answer.headers["x-should-retry"]) == ("deadline_exceeded", "false")
    exchange = Exchange(tree, COMPLETIONS, endless(tree, stream=True), {"x-request-timeout": "0.5"})
    with closing(exchange):
        *_, last, done = exchange.raw_events()
        assert b'"code":"deadline_exceeded"' in last
        assert done == b"data: [DONE]\n\n"
    tree.settled()


def test_who_waits_too_long_is_told_and_who_runs_goes_on_to_the_server_s_limit(impatient_tree):
    tree = impatient_tree
    [busy] = running(tree, 1)
    began = time.monotonic()
    answer = tree.post(COMPLETIONS, endless(tree))
    assert error_of(answer, 504)["code"] == "queue_timeout"
    assert int(answer.headers["retry-after"]) > 0
    assert 0.9 < time.monotonic() - began < 3 * PATIENCE
    assert (busy.join(), busy.error["code"]) == ("error", "deadline_exceeded")
    tree.settled()


async def test_the_client_over_zeromq_meets_the_same_limits(impatient_tree):
    tree = impatient_tree
    async with connected(tree) as client:
        with pytest.raises(DeadlineExceeded, match="0.5 s") as caught:
            await read(client.generate([1], timeout_s=0.5, max_tokens=4000, ignore_eos=True))
        assert (caught.value.status, caught.value.code) == (504, "deadline_exceeded")
        busy = client.generate([2], max_tokens=4000, ignore_eos=True)
        await anext(busy)
        with pytest.raises(QueueTimeout) as caught:
            await read(client.generate([3], max_tokens=4000, ignore_eos=True))
        assert caught.value.retry_after > 0
        await busy.aclose()
    tree.settled()


def test_b25_a_stream_that_waits_in_the_queue_is_kept_alive(start):
    """Headers at once, comments between events alone; and a wait that ends with an error says so in an event."""
    tree = start(*NULL, "--max-num-seqs", 1, "--stream-keep-alive-s", 0.2, "--queue-timeout-s", 3)
    [busy] = running(tree, 1, max_tokens=80)
    served = Exchange(tree, COMPLETIONS, endless(tree, stream=True, max_tokens=3))
    with closing(served):
        assert served.response.status == 200
        events = served.raw_events()
        assert next(events) == b": keep-alive\n\n"
        assert busy.ending == "running"
        *_, done = events
        assert done == b"data: [DONE]\n\n"
    assert busy.join() == "done"
    running(tree, 1)
    late = Exchange(tree, COMPLETIONS, endless(tree, stream=True))
    with closing(late):
        *comments, error, done = late.raw_events()
        assert set(comments) == {b": keep-alive\n\n"}
        assert b'"code":"queue_timeout"' in error
        assert done == b"data: [DONE]\n\n"


# Limits of keys.


def from_elsewhere(number):
    """What a client, or a proxy, may say of where a request comes from."""
    address = f"10.0.0.{number}"
    return {"x-forwarded-for": address, "x-real-ip": address, "forwarded": f"for={address}"}


def test_callers_have_their_limits_and_their_shares(start, tmp_path):
    """One may have three open at once; of another, who has nothing waiting, one request passes all that wait.

    Callers are told apart by their keys, wherever they say that they are (e21).
    """
    keys = {name: f"{name}-" + "0123456789abcdef" * 3 for name in ("heavy", "light")}
    file = tmp_path / "keys.toml"
    file.write_text(
        "".join(
            f'[[key]]\nname = "{name}"\nhash = "sha256:{hashlib.sha256(key.encode()).hexdigest()}"\n{limits}\n'
            for (name, key), limits in zip(keys.items(), ("max_requests = 3", "requests_per_minute = 2"), strict=True)
        )
    )
    file.chmod(0o600)
    heavy, light = ({"authorization": f"Bearer {key}"} for key in keys.values())
    tree = start(*NULL, "--max-num-seqs", 1, "--api-keys-file", file, ready=False)
    until(lambda: tree.client.get("/health").status_code == 200 if "ready after" in tree.log else False, 40)
    body = {"model": "null", "prompt": [1], "max_tokens": 100, "ignore_eos": True, "stream": True}
    with ExitStack() as stack:
        first, *others = [
            stack.enter_context(closing(Exchange(tree, COMPLETIONS, body, heavy))) for _ in range(3)
        ]  # fmt: skip
        next(first.raw_events())
        error = error_of(tree.post(COMPLETIONS, body, headers=heavy), 429)
        assert (error["code"], "max_requests is 3" in error["message"]) == ("rate_limit_exceeded", True)
        answer = tree.post(COMPLETIONS, body | {"stream": False, "max_tokens": 2}, headers=light | from_elsewhere(1))
        assert answer.status_code == 200, answer.text
        assert not any(one.has_ended() for one in others), "it has waited for them"
        *_, done = first.raw_events()
        assert done == b"data: [DONE]\n\n"
        assert tree.post(COMPLETIONS, body | {"max_tokens": 1}, headers=light | from_elsewhere(2)).status_code == 200
        refused = tree.post(COMPLETIONS, body, headers=light | from_elsewhere(3))
        assert "requests_per_minute, 2" in error_of(refused, 429)["message"]
        assert 1 < int(refused.headers["retry-after"]) <= 30
