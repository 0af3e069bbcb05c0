"""More than may wait is refused at once, and what was accepted is served."""

import time
from contextlib import ExitStack, closing

import pytest
from exchange import PATHS, Exchange, endless
from refusals import error_of
from tree import PATIENCE, until

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
        accepted = [
            stack.enter_context(closing(Exchange(tree, COMPLETIONS, body | {"max_tokens": 300 if first else 8},
                                                 {"x-session-id": "one"})))
            for first in [True] * replicas + [False] * 10 * replicas
        ]  # fmt: skip
        until(lambda: waiting(tree) == [10] * replicas, 10)
        began = time.monotonic()
        answer = tree.post(COMPLETIONS, body)
        assert time.monotonic() - began < 0.5 * PATIENCE
        error = error_of(answer, 429)
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
