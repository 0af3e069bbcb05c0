"""Streams whose tree loses a process: with either route, streamed or not, in any phase, their clients see a pause."""

from functools import partial

import openai
import pytest
from answers import counts, events, joined, parsed, whole
from exchange import PATHS, Exchange, body_of
from streaming import assert_undisturbed, running
from tree import in_parallel, until

pytestmark = [pytest.mark.serving]

VICTIMS = ["worker-0-0", "engine-0", "balancer", "detokenizer-0"]
FIELDS = {"max_tokens": 120, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def tree(tree_of):
    """Every role in a process of its own; it outlives all the deaths of this file."""
    return tree_of("--model-impl", "null", "--null-step-ms", 20, "--executor", "broadcast", "--max-restarts", 100)


def until_ready_again(tree):
    """Readiness counts once a request is served: the frontend may not have noticed the death yet."""
    until(lambda: tree.post(PATHS[0], {"model": tree.model, "prompt": "Hi", "max_tokens": 1}).status_code == 200, 10)
    until(lambda: tree.client.get("/ready").json().get("status") == "ready", 10)
    tree.sentinel()
    tree.settled()


@pytest.mark.parametrize("victim", VICTIMS)
def test_b15_nobody_hears_of_a_dead_process(tree, victim):
    """Four requests in the middle of their answers: either route, streamed and not. Texts, reasons and usage."""
    calm = {path: whole(tree, path, **FIELDS) for path in PATHS}
    options = {"stream_options": {"include_usage": True}}
    streams = {path: Exchange(tree, path, body_of(tree, path, stream=True, **FIELDS, **options)) for path in PATHS}
    others = {path: Exchange(tree, path, body_of(tree, path, **FIELDS)) for path in PATHS}
    until(lambda: tree.total("num_requests_running") == 4, 5)
    tree.kill(victim)
    for path, exchange in streams.items():
        answer = joined(parsed(exchange.raw_events()))
        assert answer._replace(usage=counts(answer.usage)) == calm[path]
    for path, exchange in others.items():
        assert exchange.response.status == 200
        body = exchange.json()
        assert (body["choices"][0]["finish_reason"], counts(body["usage"])) == ("length", calm[path].usage)
    assert "error" not in "".join(line for line in tree.log.splitlines() if "request_id" in line)
    until_ready_again(tree)


@pytest.mark.parametrize("n", [1, 8])
def test_b15_all_choices_go_on(tree, n):
    fields = {**FIELDS, "n": n, "temperature": 1, "seed": 5}
    calm = whole(tree, PATHS[0], **fields)
    exchange = Exchange(tree, PATHS[0], body_of(tree, PATHS[0], stream=True, **fields))
    raw = exchange.raw_events()
    first = next(raw)
    tree.kill("engine-0")
    assert joined(parsed([first, *raw])).texts == calm.texts
    until_ready_again(tree)


def test_b15_the_sdk_sees_a_pause(tree):
    client = openai.OpenAI(base_url=f"{tree.url}/v1", api_key="none", max_retries=0)
    options = {"model": tree.model, "max_tokens": 100, "temperature": 0, "extra_body": {"ignore_eos": True}}
    messages = [{"role": "user", "content": "Hi"}]
    calm = client.chat.completions.create(messages=messages, **options).choices[0].message.content
    stream = client.chat.completions.create(messages=messages, stream=True, **options)
    text = next(iter(stream)).choices[0].delta.content or ""
    tree.kill("detokenizer-0")
    text += "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == calm
    until_ready_again(tree)


def test_b15_who_waits_goes_on_waiting(tree_of):
    """Requests that have no token yet are answered when their only replica is back."""
    tree = tree_of("--model-impl", "null", "--null-step-ms", 20, "--max-num-seqs", 1, "--max-restarts", 100)
    streams = running(tree, 1, max_tokens=100)
    fields = {"max_tokens": 5, "ignore_eos": True}
    waiting = [
        Exchange(tree, path, body_of(tree, path, stream=one, **fields)) for path in PATHS for one in (True, False)
    ]
    until(lambda: tree.total("num_requests_waiting") == 4, 5)
    tree.kill("engine-0")
    for exchange in waiting:
        assert exchange.response.status == 200
        exchange.close()
    assert_undisturbed(streams)
    until_ready_again(tree)


def test_b15_streams_of_a_dead_detokenizer_go_on_at_another(tree_of):
    tree = tree_of("--model-impl", "null", "--null-step-ms", 5, "--detokenizers", 2, "--max-restarts", 100)
    jobs = [partial(events, tree, PATHS[0], max_tokens=200, ignore_eos=True, seed=seed) for seed in range(8)]
    calm = [joined(job()).texts for job in jobs]
    disturbed = in_parallel([*jobs, partial(kill_soon, tree, "detokenizer-1")])[:-1]
    assert [joined(one).texts for one in disturbed] == calm
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
