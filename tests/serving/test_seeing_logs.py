"""Logs of whole trees as machines read them: every line is an object, whatever happens."""

import json
from itertools import pairwise

import pytest
from tree import until

pytestmark = [pytest.mark.serving]


def lines_of(tree):
    """Every line that the tree has written so far; a line that is no object fails the test."""
    return [json.loads(line) for line in tree.log.splitlines()]


def test_every_line_is_an_object_from_start_to_stop(start):
    tree = start("--model-impl", "null", "--executor", "broadcast", "--log-format", "json", "--log-requests")
    answer = tree.post("/v1/completions", {"model": tree.model, "prompt": "x", "max_tokens": 3})
    assert answer.status_code == 200
    tree.kill("worker-0-0")
    until(lambda: any(line["event"] == "ready again" for line in lines_of(tree)), 20)
    status, left = tree.stop()
    assert (status, left) == (0, {})
    lines = lines_of(tree)
    for line in lines:
        assert {"timestamp", "level", "event", "actor", "host", "pid"} <= line.keys()
    (lost,) = [line for line in lines if line["event"].startswith("lost")]
    assert lost["level"] == "warning"
    assert "worker-0-0" in lost["event"]
    (access,) = [line for line in lines if line.get("path") == "/v1/completions"]
    assert access["request_id"] == answer.headers["x-request-id"]
    assert access["completion_tokens"] == 3


def test_a_tree_that_cannot_start_says_so_in_the_same_format(start):
    tree = start("/nowhere/model", "--log-format", "json", ready=False)
    assert tree.wait() != 0
    assert lines_of(tree)[-1]["level"] == "error"
    assert "/nowhere/model" in lines_of(tree)[-1]["event"]


WAY = [
    ("frontend-0", "accepted"), ("detokenizer-0", "text opened"), ("frontend-0", "sent"), ("balancer", "routed"),
    ("engine-0", "admitted"), ("engine-0", "entered slot"), ("worker-0-0", "entered slot"), ("engine-0", "first token"),
    ("frontend-0", "first text"), ("engine-0", "left"), ("detokenizer-0", "text ended"), ("frontend-0", "ended"),
]  # fmt: skip


@pytest.fixture(scope="module")
def debug_tree(tree_of):
    return tree_of(
        "--model-impl", "null", "--executor", "broadcast", "--log-format", "json", "--log-level", "debug"
    )  # fmt: skip


def of(tree, request_id):
    """What each actor said of a request, sorted by the time at which it was said."""
    lines = [line for line in lines_of(tree) if line.get("request_id") == request_id]
    return [(line["actor"], line["event"]) for line in sorted(lines, key=lambda line: line["timestamp"])]


def test_each_process_says_what_it_does_with_a_request(debug_tree):
    tree = debug_tree
    body = {"model": tree.model, "prompt": "a", "max_tokens": 4, "ignore_eos": True}
    answer = tree.client.post("/v1/completions", json=body, headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    until(lambda: set(WAY) <= set(of(tree, "mine-1")), 10)
    said = of(tree, "mine-1")
    sent = ("frontend-0", "sent")  # said once the message has left, when its receivers may have said theirs
    for before, after in pairwise(step for step in WAY[:8] if step != sent):
        assert said.index(before) < said.index(after)
    assert said.index(("detokenizer-0", "text opened")) < said.index(sent) < said.index(("frontend-0", "first text"))
    assert len(said) == len(set(said)) == len(WAY)


def test_choices_and_refusals_are_told_by_the_same_id(debug_tree):
    tree = debug_tree
    body = {"model": tree.model, "prompt": "a", "max_tokens": 2, "n": 3}
    assert tree.client.post("/v1/completions", json=body, headers={"x-request-id": "mine-2"}).status_code == 200
    until(lambda: of(tree, "mine-2").count(("engine-0", "left")) == 3, 10)
    choices = {line["request"] for line in lines_of(tree) if line.get("request_id") == "mine-2" and "request" in line}
    assert len(choices) == 3


def test_what_a_client_leaves_is_told_by_its_id(debug_tree):
    tree = debug_tree
    body = {"model": tree.model, "prompt": "a", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
    with tree.client.stream("POST", "/v1/completions", json=body, headers={"x-request-id": "mine-3"}) as answer:
        next(answer.iter_lines())
    until(lambda: ("engine-0", "left") in of(tree, "mine-3"), 10)
    (left,) = [line for line in lines_of(tree) if (line.get("request_id"), line["event"]) == ("mine-3", "left")]
    assert left["reason"] == "abort"
    assert left["tokens"] > 0


def test_a_request_that_outlives_its_worker_keeps_its_id(start):
    options = ("--null-step-ms", 20, "--log-format", "json", "--log-level", "debug", "--max-restarts", 10)
    tree = start("--model-impl", "null", "--executor", "broadcast", *options)
    body = {"model": tree.model, "prompt": "a", "max_tokens": 60, "ignore_eos": True, "stream": True}
    with tree.client.stream("POST", "/v1/completions", json=body, headers={"x-request-id": "mine"}) as answer:
        lines = answer.iter_lines()
        next(lines)
        tree.kill("worker-0-0")
        assert [line for line in lines if line][-1] == "data: [DONE]"
    said = [line for line in lines_of(tree) if line.get("request_id") == "mine"]
    (interrupted,) = [line for line in said if line["event"] == "interrupted"]
    assert interrupted["cause"].startswith("engine-0")
    assert interrupted["level"] == "debug"
    attempts = {event: [line["attempt"] for line in said if line["event"] == event] for event in ("sent", "admitted")}
    assert attempts == {"sent": [0, 1], "admitted": [0, 1]}
    (ended,) = [line for line in said if line["event"] == "ended"]
    assert (ended["reason"], ended["tokens"]) == ("length", 60)
