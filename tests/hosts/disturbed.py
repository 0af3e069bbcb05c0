"""Streams that run while something happens to the hosts."""

import contextlib
import threading

from tree import in_parallel, until

SLOW = 'model_impl = "null"\nnull_step_ms = 20'
"""Of such a model the streams take 8 s."""


def texts(tree):
    """Two long ones."""
    return [text(tree, number) for number in range(2)]


def text(tree, number):
    return tree.streamed_text(f"number {number}", max_tokens=400, temperature=0)


@contextlib.contextmanager
def streams(tree):
    """Eight streams run when the block begins. After it they end with the undisturbed texts, which it is given."""
    expected, results = texts(tree), []
    jobs = [lambda number=number: text(tree, number % 2) for number in range(8)]
    reading = threading.Thread(target=lambda: results.extend(in_parallel(jobs)))
    reading.start()
    until(lambda: tree.total("num_requests_running") == 8, 20)
    yield expected
    reading.join(200)
    assert results == expected * 4
