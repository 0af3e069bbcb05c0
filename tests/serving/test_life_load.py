"""A busy tree is healthy, an idle one costs nothing, and a peer that stands still loses nothing."""

import itertools
import json
import os
import re
import resource
import signal
import statistics
import threading
import time
from pathlib import Path

import pytest
import tiny_llama
from beside import Beside
from exchange import PATHS, Exchange, body_of, endless
from shapes import SHAPES
from streaming import Streaming, endings, running
from tree import PATIENCE, in_parallel, until

pytestmark = [pytest.mark.serving]

NULL = ("--model-impl", "null")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def long(*values):
    """The parameters of a case's long form."""
    return pytest.param(*values, id="long", marks=[pytest.mark.long, pytest.mark.timeout(1200)])


class Watch(Beside):
    """Asks for health and metrics all the time: how long each answer took, and what it was."""

    def __init__(self, tree):
        super().__init__(0.05)
        self._tree = tree
        self.seconds = {"/health": [], "/metrics": []}
        self.statuses = set()

    def step(self):
        for path, seconds in self.seconds.items():
            began = time.monotonic()
            self.statuses.add(self._tree.client.get(path).status_code)
            seconds.append(time.monotonic() - began)

    def worst(self, path):
        """The 99th percentile, in seconds."""
        return sorted(self.seconds[path])[int(0.99 * len(self.seconds[path]))]


class Pace:
    """Looks at streams every few milliseconds: when had each of them more text?"""

    def __init__(self, streams):
        self._streams = streams
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._moments = [[] for _ in streams]
        self._thread.start()

    def _look(self):
        lengths = [0] * len(self._streams)
        while not self._over.wait(0.005):
            for index, stream in enumerate(self._streams):
                if len(stream.texts) > lengths[index]:
                    lengths[index] = len(stream.texts)
                    self._moments[index].append(time.monotonic())

    def worst_gap(self):
        """Ends the look; the longest time, in seconds, in which a stream stood still."""
        self._over.set()
        self._thread.join()
        return max(later - earlier for moments in self._moments for earlier, later in itertools.pairwise(moments))


def huge_bodies(tree):
    """Eight of five megabytes, of which two are short enough to be tokenized, and one prompt as long as the context."""
    words = "the quick brown fox jumps over the lazy dog, and then some more of it; "
    texts = [words * (5 * 2**20 // len(words))] * 6 + [words * (600_000 // len(words)), "x" * 640_000]
    bodies = [body_of(tree, PATHS[index % 2], prompt=text, max_tokens=4) for index, text in enumerate(texts)]
    longest = body_of(tree, PATHS[0], prompt=[1] * 8000, max_tokens=4)
    return [(PATHS[index % 2], body) for index, body in enumerate(bodies)] + [(PATHS[0], longest)]


@pytest.mark.parametrize("rounds", [pytest.param(1, id="short"), long(10)])
def test_a37_a_busy_tree_is_healthy(start, rounds):
    """A real tokenizer, without the model: long texts are tokenized, templates rendered, and nobody else waits."""
    tree = start("smollm2-135m", *NULL, "--null-step-ms", 20)
    streams = running(tree, 4, max_tokens=8000)
    pace = Pace(streams)
    with Watch(tree) as watch:
        for _ in range(rounds):
            jobs = [lambda path=path, body=body: tree.post(path, body).status_code for path, body in huge_bodies(tree)]
            statuses = in_parallel(jobs)
            assert set(statuses) <= {200, 400}, statuses
            assert statuses.count(400) >= 6
            assert statuses[-1] == 200
    gap = pace.worst_gap()
    assert watch.statuses == {200}
    assert watch.worst("/health") < 0.5 * PATIENCE
    assert gap < 1 * PATIENCE
    assert [stream.ending for stream in streams] == ["running"] * 4


def cpu_seconds(tree):
    """User and system time of all processes of a tree."""
    total = 0
    for pid in tree.processes():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) * TICK_S
    return total


def wakeups(tree):
    """{title: how often the threads of a process have gone to sleep}, by which one counts how often they woke."""
    return {
        title: sum(map(voluntary_switches, Path(f"/proc/{pid}/task").iterdir()))
        for pid, title in tree.processes().items()
    }


def voluntary_switches(thread):
    return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)$", (thread / "status").read_text(), re.MULTILINE)[1])


def most_wakeups(title, children, seconds):
    """Two threads wake for a heartbeat, which every process sends every two seconds and the supervisor receives.

    Times two, because a thread may sleep between two parts of one task; a loop that polls ten times a second is above.
    """
    heartbeats = (1 + seconds / 2) * (1 + children if title == "actorlm supervisor" else 1)
    return 2 * 2 * heartbeats


def time_to_first_token(tree):
    began = time.monotonic()
    stream = Streaming(tree, max_tokens=1)
    assert stream.join() == "done"
    return time.monotonic() - began


@pytest.mark.parametrize("seconds", [pytest.param(6, id="short"), long(60)])
@pytest.mark.parametrize("tensors", [False, True], ids=["null", "tensors on dp2 tp2"])
def test_a40_an_idle_tree_costs_nothing(start, tmp_path, seconds, tensors):
    """Nobody wakes but for heartbeats, and no thread spins; it is awake at once.

    That keeps it below 5 % of a core where a wakeup costs what it computes. Some machines charge up to a tick of their
    clock, 10 ms, for waking after seconds of sleep, whatever is done then: so wakeups are counted, time only bounded.
    """
    shape = ("--model", tiny_llama.write(tmp_path / "tiny"), *SHAPES["dp2 tp2"]) if tensors else (*NULL, "--dp", 2)
    tree = start(*shape, "--executor", "broadcast", "--frontends", 2)
    for _ in range(2):
        busy = statistics.median(time_to_first_token(tree) for _ in range(5))
        tree.settled()
        time.sleep(2)  # what work leaves behind, such as a connection that closes, is no cost of idling
        used, woken = cpu_seconds(tree), wakeups(tree)
        time.sleep(seconds)
        used, woken = cpu_seconds(tree) - used, {title: count - woken[title] for title, count in wakeups(tree).items()}
        assert used < 0.3 * seconds
        children = len(woken) - 1
        too_often = {title: count for title, count in woken.items() if count > most_wakeups(title, children, seconds)}
        assert not too_often
        assert time_to_first_token(tree) < busy + 0.1 * PATIENCE


@pytest.mark.parametrize("victim", ["frontend-0", "detokenizer-0", "balancer", "engine-0", "worker-0-0"])
def test_a42_a_peer_that_stands_still_for_a_while_loses_nothing(start, victim):
    """Requests that run, and those that come meanwhile, go on as if nothing had been."""
    tree = start(*NULL, "--executor", "broadcast", "--frontends", 1)
    assert_nothing_is_lost(tree, victim, requests=8, n=4, seconds=1.5)


@pytest.mark.parametrize("victim", ["frontend-0", "detokenizer-0"])
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a42_thousands_of_streams_behind_a_peer_that_stands_still(start, victim):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    tree = start(*NULL, "--executor", "broadcast")
    assert_nothing_is_lost(tree, victim, requests=100, n=64, seconds=5)


def assert_nothing_is_lost(tree, victim, *, requests, n, seconds):
    """All texts equal those of a tree that was left alone."""
    fields = {"n": n, "max_tokens": 40, "ignore_eos": True, "temperature": 1, "seed": 5, "logit_bias": {"65": 9.999}}
    expected = [plain_texts(tree, f"{number}", fields) for number in range(requests)]
    exchanges = [stream_of(tree, number, fields) for number in range(requests // 2)]
    pid = tree.kill(victim, signal.SIGSTOP)
    time.sleep(seconds / 2)
    exchanges += [stream_of(tree, number, fields) for number in range(requests // 2, requests)]
    time.sleep(seconds / 2)
    os.kill(pid, signal.SIGCONT)
    found = in_parallel([lambda exchange=exchange: streamed_texts(exchange, n) for exchange in exchanges])
    assert found == expected
    tree.settled()
    assert "lost" not in tree.log


def plain_texts(tree, prompt, fields):
    return [choice["text"] for choice in tree.complete(prompt, **fields)["choices"]]


def stream_of(tree, number, fields):
    return Exchange(tree, PATHS[0], body_of(tree, PATHS[0], prompt=f"{number}", stream=True, **fields))


def streamed_texts(exchange, n):
    """The text of each choice of a stream that ends as it should."""
    assert exchange.response.status == 200, exchange.response.read()
    texts, finished = [""] * n, [None] * n
    *events, done = exchange.raw_events()
    assert done == b"data: [DONE]\n\n"
    for raw in events:
        for choice in json.loads(raw.removeprefix(b"data: "))["choices"]:
            texts[choice["index"]] += choice["text"]
            finished[choice["index"]] = choice["finish_reason"] or finished[choice["index"]]
    assert finished == ["length"] * n
    exchange.close()
    return texts


def test_a42_one_reader_that_stands_still_blocks_nobody(start):
    """A client that does not read while others do."""
    tree = start(*NULL)
    deaf = [Exchange(tree, PATHS[0], endless(tree, stream=True, n=16)) for _ in range(4)]
    until(lambda: tree.total("generation_tokens_total") > 1000, 10)
    assert endings([Streaming(tree, max_tokens=200, prompt=str(number)) for number in range(8)]) == ["done"] * 8
    for exchange in deaf:
        exchange.close()
    tree.settled()
