"""`actorlm chat` and `actorlm bench serve` as people use them, against whole trees."""

import contextlib
import itertools
import json
import os
import pty
import select
import signal
import subprocess
import time

import null_model
import pytest
from answers import whole
from exchange import PATHS
from hostile import bound_sockets
from tree import ACTORLM, PATIENCE, until

pytestmark = [pytest.mark.serving]

CHAT = PATHS[1]


def ways(tree):
    """The two ways to reach a tree."""
    return {"HTTP": tree.url, "ZeroMQ": os.path.dirname(bound_sockets(tree)["frontend-0"])}  # noqa: PTH120


def running(tree):
    """How many requests the engines work on."""
    return sum(value for (name, _), value in tree.metrics().items() if name == "num_requests_running")


def run(*arguments, stdin=""):
    return subprocess.run(
        [ACTORLM, *arguments], input=stdin.encode(), capture_output=True, timeout=60 * PATIENCE, check=False
    )


class Typing:
    """A process at a terminal of its own."""

    def __init__(self, *arguments):
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.execv(ACTORLM, [ACTORLM, *arguments])
        self.seen = b""

    def type(self, text):
        os.write(self._terminal, text)

    def see(self, what, seconds=20):
        """Waits until it is on the screen, behind what was seen before."""
        deadline = time.monotonic() + seconds * PATIENCE
        while what not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self._terminal], [], [], 0.2)[0]:
                self.seen += os.read(self._terminal, 1 << 16)
        self.seen = self.seen.partition(what)[2]

    def ends(self):
        """The exit status."""
        with contextlib.suppress(OSError):  # Linux says so at the end of a terminal
            while os.read(self._terminal, 1 << 16):
                pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.parametrize("way", ["HTTP", "ZeroMQ"])
def test_a_pipe_gets_an_answer_a_line(null_tree, way):
    parameters = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "seed": 7, "max_tokens": 12,
                  "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.2}  # fmt: skip
    flags = [text for name, value in parameters.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    done = run(
        "chat", "--url", ways(null_tree)[way], *flags, "--system", "Be brief.", "--stop", "A", "--stop", "B",
        stdin="one\n/reset\ntwo\n",
    )  # fmt: skip
    expected = ""
    for question in ("one", "two"):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
        answer = whole(null_tree, CHAT, messages=messages, stop=["A", "B"], **parameters)
        expected += f"{answer.texts[0]}\n"
    assert (done.stdout.decode(), done.stderr, done.returncode) == (expected, b"", 0)


def long_winded(tree, question):
    """A seed with which the null model answers at length: with another one it may end at its first word."""
    asked = {"messages": [{"role": "user", "content": question}]}
    ids = tree.client.post("/tokenize", json=asked).json()["tokens"]
    return next(seed for seed in itertools.count(1) if len(null_model.generated(ids, 1000, seed=seed)) == 1000)


@pytest.mark.parametrize("way", ["HTTP", "ZeroMQ"])
def test_a_conversation_at_a_terminal(slow_null_tree, way):
    seed = long_winded(slow_null_tree, "hello")
    typing = Typing("chat", "--url", ways(slow_null_tree)[way], "--max-tokens", "3000", "--seed", str(seed))
    typing.see(b"/exit leaves")
    typing.see(b"> ")
    typing.type(b"hello\n")
    until(lambda: running(slow_null_tree) == 1, 10)
    typing.type(b"\x03")
    typing.see(b"stopped\r\n> ")
    until(lambda: running(slow_null_tree) == 0, 5)
    typing.type(b"half a line\x03")
    typing.see(b"> ")
    typing.type(b"/reset\n")
    typing.see(b"> ")
    typing.type(b"\x04")
    assert typing.ends() == 0


def test_a_field_that_is_refused_is_said(null_tree):
    done = run("chat", "--url", null_tree.url, "--model", "other", stdin="one\n")
    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.startswith(b"actorlm: HTTP 404")


@pytest.mark.parametrize("options", [[], ["--api", "chat"], ["--prompts", "ids"]], ids=str)
def test_a_tree_is_measured(null_tree, options):
    done = run(
        "bench", "serve", "--url", null_tree.url, "--num-prompts", "20", "--input-len", "200", "--output-len", "16",
        "--shared-prefix", "64", "--json", "-", *options,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["requests"]["complete"] == 20
    assert report["throughput"]["output_tokens"] == 20 * 16
    assert report["throughput"]["input_tokens"] == pytest.approx(20 * 200, abs=20 * 5)
    assert report["throughput"]["counted"]


def test_a_server_that_dies_is_counted_and_named(start):
    tree = start("--model-impl", "null", "--null-step-ms", "20")
    process = subprocess.Popen(
        [ACTORLM, "bench", "serve", "--url", tree.url, "--num-prompts", "8", "--output-len", "3000",
         "--max-concurrency", "4", "--json", "-"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until(lambda: running(tree) == 4, 20)
    tree.process.send_signal(signal.SIGKILL)
    out, _ = process.communicate(timeout=60 * PATIENCE)
    assert process.returncode == 1
    report = json.loads(out)
    assert (report["requests"]["complete"], report["requests"]["failed"]) == (0, 8)
    kinds = {each["kind"] for each in report["failures"]}
    assert "connection lost" in kinds or "error in the stream" in kinds, "those that were under way"
    assert kinds <= {"connection lost", "error in the stream", "connection refused", "cannot connect"}
