"""What an operator does over HTTP, in whole trees: a restart that breaks no stream, a drain that ends the tree."""

import threading

import pytest
from tree import Tree, until

pytestmark = [pytest.mark.serving, pytest.mark.timeout(300)]

KEY = "sk-of-the-operators"
OPERATOR = {"authorization": f"Bearer {KEY}"}


@pytest.fixture
def tree():
    with Tree("--model-impl", "null", "--null-step-ms", "10", env={"ACTORLM_ADMIN_KEY": KEY}) as one:
        yield one.wait_ready()


def order(tree, path, **parameters):
    return tree.client.post(f"/admin/{path}", params=parameters, headers=OPERATOR)


def actors(tree):
    described = tree.client.get("/admin/tree", headers=OPERATOR).json()
    return {actor["name"]: actor for actor in described["actors"]}


def test_a_restart_breaks_no_stream(tree):
    """Not even that of the frontend which is told of it."""
    fields = {"prompt": "x", "max_tokens": 300, "seed": 1, "temperature": 1.0}
    undisturbed, texts = tree.text(**fields), []
    for name in ("engine-0", "balancer", "frontend-0"):
        before = actors(tree)[name]["pid"]
        stream = threading.Thread(target=lambda: texts.append(tree.streamed_text(**fields)))
        stream.start()
        until(lambda: tree.total("num_requests_running") == 1, 10)
        answer = order(tree, f"restart/{name}")
        assert (answer.status_code, answer.json()["status"]) == (202, "begun")
        assert name in answer.json()["text"]
        until(lambda name=name, before=before: actors(tree)[name]["pid"] not in (0, before), 30)
        stream.join(60)
        until(lambda: tree.client.get("/ready").status_code == 200, 30)
    assert texts == [undisturbed] * 3


def test_what_cannot_be_done_is_said(tree):
    for name in ("engine-7", "nobody"):
        answer = order(tree, f"restart/{name}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "actor_not_found")
    assert order(tree, "drain", seconds="soon").status_code == 400
    tree.sentinel()


def test_a_drain_ends_the_tree(tree):
    stream = tree.events("/v1/completions", {"prompt": "x", "max_tokens": 800})
    next(stream)
    answer = order(tree, "drain", seconds=60)
    assert answer.status_code == 202
    assert "draining for up to 60 s" in answer.json()["text"]
    assert tree.post("/v1/completions", {"model": "null", "prompt": "x"}).status_code == 503
    assert sum(1 for _ in stream) > 10
    assert tree.wait(30) == 0
    assert not tree.processes()
