"""Logs of whole trees as machines read them: every line is an object, whatever happens."""

import json

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
