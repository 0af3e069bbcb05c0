"""A stream that fails in the middle says so: an error event, then [DONE], and a line in the log."""

import json
import re
import time
from functools import partial

import openai
import pytest
from answers import events
from exchange import PATHS, Exchange, endless
from tree import PATIENCE, StreamError, in_parallel, until

pytestmark = [pytest.mark.serving]

VICTIMS = ["worker-0-0", "engine-0", "balancer", "detokenizer-0"]


@pytest.fixture(scope="module")
def tree(tree_of):
    """Every role in a process of its own; it outlives all the deaths of this file."""
    return tree_of("--model-impl", "null", "--null-step-ms", 20, "--executor", "broadcast", "--max-restarts", 100)


class Running:
    """Four requests in the middle of their answers: either route, streamed and not. By their request ids."""

    def __init__(self, tree, name):
        self.streams = {f"{name}-s{i}": (path, True) for i, path in enumerate(PATHS)}
        self.others = {f"{name}-o{i}": (path, False) for i, path in enumerate(PATHS)}
        self.exchanges = {
            label: Exchange(tree, path, endless(tree, path, stream=stream), {"x-request-id": label})
            for label, (path, stream) in (self.streams | self.others).items()
        }
        self.events = {label: self.exchanges[label].raw_events() for label in self.streams}
        for raw in self.events.values():
            for _ in range(3):
                assert b'"choices":[{' in next(raw)
        until(lambda: tree.total("num_requests_running") == 4, 5)


@pytest.mark.parametrize("victim", VICTIMS)
def test_b15_a_dead_process_ends_requests_with_an_error(tree, victim):
    """Within five seconds. Who was to be answered in one body gets a status that says that it is the server's fault."""
    running = Running(tree, f"b15-{victim}")
    tree.kill(victim)
    began = time.monotonic()
    for raw in running.events.values():
        *_, error, done = raw
        assert done == b"data: [DONE]\n\n"
        assert_interrupted(re.fullmatch(rb"data: (.*)\n\n", error)[1])
    for label in running.others:
        response = running.exchanges[label].response
        assert response.status == 500
        assert_interrupted(response.read())
    assert time.monotonic() - began < 5 * PATIENCE
    for label in running.exchanges:
        lines = [line for line in tree.log.splitlines() if f"request_id={label}" in line]
        assert len(lines) == 1, lines
        assert "error" in lines[0]
    until_ready_again(tree)


def assert_interrupted(body):
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "server_error"
    assert error["code"] == "interrupted"
    assert error["message"].endswith("was lost while it worked on this request; send it again")
    assert error["param"] is None


def until_ready_again(tree):
    """Readiness counts once a request is served: the frontend may not have noticed the death yet."""
    until(lambda: tree.post(PATHS[0], {"model": tree.model, "prompt": "Hi", "max_tokens": 1}).status_code == 200, 10)
    until(lambda: tree.client.get("/ready").json().get("status") == "ready", 10)
    tree.sentinel()
    tree.settled()


@pytest.mark.parametrize("n", [1, 8])
def test_b15_all_choices_end_with_one_error(tree, n):
    exchange = Exchange(tree, PATHS[0], endless(tree, stream=True, n=n))
    raw = exchange.raw_events()
    next(raw)
    tree.kill("engine-0")
    *_, error, done = raw
    assert b'{"error":' in error
    assert done == b"data: [DONE]\n\n"
    until_ready_again(tree)
    exchange.close()


def test_b15_the_sdk_raises_the_error_of_the_stream(tree):
    client = openai.OpenAI(base_url=f"{tree.url}/v1", api_key="none", max_retries=0)
    chat = client.chat.completions.create(
        model=tree.model, messages=[{"role": "user", "content": "Hi"}], stream=True, max_tokens=4000,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    text = client.completions.create(
        model=tree.model, prompt="Hi", stream=True, max_tokens=4000, extra_body={"ignore_eos": True}
    )
    next(iter(chat)), next(iter(text))
    tree.kill("detokenizer-0")
    for stream in (chat, text):
        with pytest.raises(openai.APIError, match="detokenizer-0 was lost while it worked on this request") as caught:
            list(stream)
        assert caught.value.code == "interrupted"
        assert caught.value.type == "server_error"
    until_ready_again(tree)


def test_b15_who_waits_hears_it_too(tree_of):
    """Requests that have no token yet get a status, streamed or not: nothing was sent that would say 200."""
    tree = tree_of(
        "--model-impl", "null", "--null-step-ms", 20, "--max-num-seqs", 1, "--max-restarts", 100
    )  # fmt: skip
    first = Exchange(tree, PATHS[0], endless(tree, stream=True))
    next(first.raw_events())
    waiting = [Exchange(tree, path, endless(tree, path, stream=stream)) for path in PATHS for stream in (True, False)]
    until(lambda: tree.total("num_requests_waiting") == 4, 5)
    tree.kill("engine-0")
    for exchange in waiting:
        assert exchange.response.status == 500
        assert exchange.response.getheader("content-type") == "application/json"
        assert exchange.json()["error"]["code"] == "interrupted"
    until_ready_again(tree)


def test_b15_one_stream_of_many_detokenizers_goes_on(tree_of):
    """Only those fail whose detokenizer died; and what comes while it is away is served by the others."""
    tree = tree_of("--model-impl", "null", "--null-step-ms", 5, "--detokenizers", 2, "--max-restarts", 100)
    jobs = [partial(events, tree, PATHS[0], max_tokens=200, ignore_eos=True, seed=seed) for seed in range(8)]
    tree_events = in_parallel([*jobs, partial(kill_soon, tree, "detokenizer-1")])[:-1]
    failed = [one for one in tree_events if isinstance(one, StreamError)]
    assert len(failed) == 4
    assert all("detokenizer-1 was lost" in str(error) for error in failed)
    assert sum(isinstance(one, list) for one in tree_events) == 4
    until_ready_again(tree)


def kill_soon(tree, name):
    until(lambda: tree.total("num_requests_running") == 8, 5)
    tree.kill(name)


def test_b15_while_one_of_two_detokenizers_is_away_all_is_served(tree_of):
    """Also requests of more choices than there are detokenizers."""
    tree = tree_of("--model-impl", "null", "--null-step-ms", 5, "--detokenizers", 2, "--max-restarts", 100)
    tree.kill("detokenizer-0")
    until(lambda: tree.client.get("/ready").json().get("status") == "degraded", 5)
    for n in range(1, 6):
        response = tree.post(PATHS[0], {"model": tree.model, "prompt": "Hi", "n": n, "max_tokens": 2})
        assert response.status_code == 200, response.text
    until_ready_again(tree)
