"""B19: clients that leave: whatever they asked for ends at once, wherever it was, and nobody is blamed.

B27: uvicorn, with HTTP/1.1, is the only ASGI server that is supported, so there is no other to try this under.
"""

import contextlib
import json
import random
import socket
import threading
from contextlib import closing
from functools import partial

import pytest
from answers import streamed
from exchange import PATHS, Exchange, body_of, endless
from null_model import bias
from tree import in_parallel, until

pytestmark = [pytest.mark.serving]

COMPLETIONS, CHAT = PATHS
SEATS = 4


@pytest.fixture(scope="module")
def tree(tree_of):
    """Four seats, 20 ms a step, and long prompts take long: 16 tokens a step."""
    options = ("--null-step-ms", 20, "--max-num-seqs", SEATS, "--max-num-batched-tokens", 16)
    return tree_of("--model-impl", "null", *options)


def load(tree):
    """Requests that run and wait, in one number each."""
    return tree.total("num_requests_running"), tree.total("num_requests_waiting")


def assert_all_ends(tree, blameless=0):
    """Within a second nothing runs or waits, and no step is computed any more; the log is as long as it was."""
    until(lambda: load(tree) == (0, 0), 1)
    tree.settled(1)
    steps, tokens = tree.total("engine_steps_total"), tree.total("generation_tokens_total")
    streamed(tree, COMPLETIONS, max_tokens=3, logit_bias=bias(b"A"))
    assert tree.total("engine_steps_total") == steps + 3
    assert tree.total("generation_tokens_total") == tokens + 3
    assert tree.log[blameless:] == ""


MANY = {"one": {}, "n 4": {"n": 4}, "four prompts": {"prompt": ["a", "b", "c", "d"]}}
LEAVE = {"close": Exchange.close, "reset": Exchange.reset}


@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.parametrize("many", MANY)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "body"])
def test_b19_b27_in_the_middle(tree, leave, many, stream):
    logged = len(tree.log)
    exchange = Exchange(tree, COMPLETIONS, endless(tree, stream=stream, **MANY[many]))
    choices = 1 if many == "one" else 4
    until(lambda: load(tree) == (choices, 0) and tree.total("kv_cache_usage_perc") > 0, 5)
    if stream:
        next(exchange.raw_events())
    LEAVE[leave](exchange)
    assert_all_ends(tree, logged)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "body"])
def test_b19_b27_before_the_first_token(tree, path, leave, stream):
    """A prompt of 4000 tokens takes 250 steps, five seconds."""
    logged = len(tree.log)
    exchange = Exchange(tree, path, endless(tree, path, prompt="x" * 4000, stream=stream))
    until(lambda: load(tree) == (1, 0), 5)
    LEAVE[leave](exchange)
    assert_all_ends(tree, logged)


@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.parametrize("many", MANY)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "body"])
def test_b19_b27_while_queued(tree, leave, many, stream):
    """Four others have all seats, and keep them."""
    logged = len(tree.log)
    seated = Exchange(tree, COMPLETIONS, endless(tree, n=SEATS, stream=True))
    until(lambda: load(tree) == (SEATS, 0), 5)
    exchange = Exchange(tree, COMPLETIONS, endless(tree, stream=stream, **MANY[many]))
    until(lambda: load(tree)[1] == (1 if many == "one" else 4), 5)
    LEAVE[leave](exchange)
    until(lambda: load(tree) == (SEATS, 0), 1)
    seated.close()
    assert_all_ends(tree, logged)


@pytest.mark.parametrize("shut", [False, True], ids=["close", "shutdown"])
@pytest.mark.parametrize("sent", ["half a head", "a head", "half a body"])
def test_b19_b27_while_it_sends(tree, sent, shut):
    logged = len(tree.log)
    accepted = tree.total("requests_accepted_total")
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9999999\r\n\r\n"
    )
    data = {"half a head": head[:40], "a head": head, "half a body": head + b'{"model": "' + b"x" * 500_000}[sent]
    with closing(socket.create_connection(("127.0.0.1", tree.port))) as sock:
        sock.sendall(data)
        tree.client.get("/health")
        if shut:
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(65536) == b""
    assert tree.total("requests_accepted_total") == accepted
    assert_all_ends(tree, logged)


@pytest.mark.parametrize("gap", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "body"])
def test_b19_b27_with_a_second_request_on_the_same_connection(tree, stream, gap):
    """The first of two pipelined requests runs, the second waits for it: both end."""
    logged = len(tree.log)
    request = raw_request(endless(tree, stream=stream))
    with closing(socket.create_connection(("127.0.0.1", tree.port))) as sock:
        sock.sendall(request if gap else 2 * request)
        until(lambda: load(tree) == (1, 0), 5)
        if gap:
            sock.sendall(request)
            tree.client.get("/health")
    assert_all_ends(tree, logged)


def raw_request(body):
    data = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(data) + data


def raw_response(lines):
    """The body of the next response on a connection."""
    length = 0
    while (line := lines.readline()) != b"\r\n":
        assert line, "the connection was closed"
        name, _, value = line.partition(b": ")
        length = int(value) if name == b"content-length" else length
    return json.loads(lines.read(length))


def test_pipelined_requests_are_answered_in_order(tree):
    """More of them than are read ahead."""
    texts = [chr(65 + i) for i in range(20)]
    bodies = [body_of(tree, COMPLETIONS, max_tokens=1, logit_bias=bias(text.encode())) for text in texts]
    with closing(socket.create_connection(("127.0.0.1", tree.port))) as sock, sock.makefile("rb") as lines:
        sock.sendall(b"".join(map(raw_request, bodies)))
        assert [raw_response(lines)["choices"][0]["text"] for _ in texts] == texts


class Proxy:
    """Passes bytes on between clients and the tree, one connection of its own for each of theirs."""

    def __init__(self, port):
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    @staticmethod
    def _pass_on(source, target):
        with contextlib.suppress(OSError):  # either side may be gone already
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._listener.close()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "body"])
def test_b19_b27_behind_a_proxy(tree, stream):
    """The connection has served another request before."""
    logged = len(tree.log)
    with closing(Proxy(tree.port)) as proxy, closing(socket.create_connection(("127.0.0.1", proxy.port))) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200 OK" in sock.recv(65536)
        sock.sendall(raw_request(endless(tree, stream=stream)))
        until(lambda: load(tree) == (1, 0), 5)
        sock.close()
        assert_all_ends(tree, logged)


def test_b19_b27_without_reading(null_tree):
    """Six megabytes of echo are more than the sockets hold: the server waits to send when the client leaves."""
    answering = null_tree.total("time_to_first_token_seconds_count")
    body = endless(null_tree, prompt="x" * 30_000, echo=True, n=200, max_tokens=2000, stream=True)
    exchange = Exchange(null_tree, COMPLETIONS, body)
    until(lambda: null_tree.total("time_to_first_token_seconds_count") >= answering + 200, 30)
    assert load(null_tree) != (0, 0)
    exchange.close()
    assert_all_ends(null_tree, len(null_tree.log))


def test_b21_a_hundred_leave_the_queue(tree):
    """At once, not when their turn would have come."""
    logged = len(tree.log)
    seated = Exchange(tree, COMPLETIONS, endless(tree, n=SEATS, stream=True))
    until(lambda: load(tree) == (SEATS, 0), 5)
    waiting = in_parallel([partial(Exchange, tree, COMPLETIONS, endless(tree, stream=i % 2 == 0)) for i in range(100)])
    until(lambda: load(tree) == (SEATS, 100), 10)
    for exchange in waiting:
        exchange.close()
    until(lambda: load(tree) == (SEATS, 0), 1)
    seated.close()
    assert_all_ends(tree, logged)


@pytest.mark.parametrize("aborts", [200, pytest.param(5000, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
def test_d06_aborts_leak_no_blocks(tree_of, aborts):
    """In every phase: waiting, any chunk of the prompt, decoding, at the last token, preempted."""
    tree = tree_of(
        "--model-impl", "null", "--null-step-ms", 1, "--kv-cache-tokens", 640, "--max-num-batched-tokens", 64,
        "--max-num-seqs", 8,
    )  # fmt: skip
    draw = random.Random(6)
    lengths = [1, 15, 16, 100, 500]
    plans = [([i % 256] * draw.choice(lengths), draw.randint(1, 60), draw.random()) for i in range(aborts)]

    def work(plans):
        for prompt, tokens, moment in plans:
            body = body_of(tree, COMPLETIONS, prompt=prompt, stream=True, max_tokens=tokens, ignore_eos=True)
            Exchange(tree, COMPLETIONS, body).leave_after(int(moment * (tokens + 1)))

    failures = in_parallel([partial(work, plans[i::12]) for i in range(12)])
    assert failures == [None] * 12
    assert tree.total("num_preemptions_total") > 0
    tree.settled()
    whole = tree.complete([1] * 600, max_tokens=41, ignore_eos=True)
    assert whole["usage"]["completion_tokens"] == 41
    series = {dict(labels)["finished_reason"]: value for (name, labels), value in tree.metrics().items()
              if name == "request_success_total"}  # fmt: skip
    assert series["abort"] > aborts / 4
    assert sum(series.values()) == tree.total("requests_accepted_total")
