"""Clients that come and go by the thousand leave nothing: no memory, no descriptors, no KV blocks, no requests."""

import json
import random
import socket
import time
from contextlib import closing, nullcontext, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from exchange import PATHS, Exchange
from tree import in_parallel, until

pytestmark = [pytest.mark.serving]

WORKERS = 8
IDS = 25_000
KIB_IN_MIB = 1024
STEADY_KIB = KIB_IN_MIB / 2
"""What is no leak although each quarter has it."""


class Resources:
    """What each process holds."""

    def __init__(self, tree):
        pids = {title: pid for pid, title in tree.processes().items()}
        self.memory_kib = {title: tree.memory_kib(pid) for title, pid in pids.items()}
        self.descriptors = {title: len(list(Path(f"/proc/{pid}/fd").iterdir())) for title, pid in pids.items()}

    def growth_mib(self, before):
        return {title: (kib - before.memory_kib[title]) / KIB_IN_MIB for title, kib in self.memory_kib.items()}


def settled(tree):
    """Nothing is left of any request; connections that were left are closed."""
    tree.settled(30)
    until(lambda: tree.total("requests_accepted_total") == tree.total("request_success_total"), 5)
    return Resources(tree)


def watched(tree, count, work):
    """Does `work(number)` for 0 to count - 1 in some threads, and looks at the tree after each quarter of it."""
    seen = [settled(tree)]
    for quarter in range(4):
        numbers = range(quarter * count // 4, (quarter + 1) * count // 4)
        results = in_parallel([partial(do_all, work, numbers[i::WORKERS]) for i in range(WORKERS)])
        assert results == [None] * WORKERS
        seen.append(settled(tree))
        print(f"after {numbers.stop}: MiB {seen[-1].growth_mib(seen[0])}, descriptors {seen[-1].descriptors}")
    return seen


def do_all(work, numbers):
    for number in numbers:
        work(number)


def assert_flat(seen):
    """No process holds 5 MiB more after each of the last two quarters than after each of the first two, or more after
    every quarter than after the one before.

    What it holds at one moment may be a peak that goes again; a leak of 5 KB a request stands out in 400 requests.
    """
    begin, *quarters = seen
    for title in begin.memory_kib:
        held = [one.memory_kib[title] for one in seen]
        _, *after = held
        assert min(after[2:]) - max(after[:2]) < 5 * KIB_IN_MIB, (title, held)
        assert min(more - less for less, more in pairwise(held)) < STEADY_KIB, (title, held)
        assert quarters[-1].descriptors[title] <= begin.descriptors[title] + 2, title


@pytest.mark.parametrize(
    ("mib", "flat"),
    [
        ([9, 9, 9, 9, 9], True),
        ([9, 12, 12, 13, 13], True),
        ([9, 30, 9, 30, 9], True),
        ([9, 9, 9, 30, 9.5], True),
        ([9, 9.6, 10.2, 10.8, 11.4], False),
        ([9, 10, 10, 16, 16], False),
    ],
)
def test_the_check_tells_a_leak_from_a_peak(mib, flat):
    seen = [SimpleNamespace(memory_kib={"x": one * KIB_IN_MIB}, descriptors={"x": 9}) for one in mib]
    with nullcontext() if flat else pytest.raises(AssertionError):
        assert_flat(seen)


def request(model, number, **fields):
    """A request of about 100 KB; no two have a block in common."""
    ids = ",".join(map(str, range(100, 200))) + ","
    fields = json.dumps({"model": model, "max_tokens": 4000, "ignore_eos": True} | fields)[:-1]
    body = f'{fields}, "prompt": [{number % 256},{number // 256},{(ids * (IDS // 100))[:-1]}]}}'.encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"
    return head.format(len(body)).encode() + body


def come_and_go(tree, model, number):
    """Leaves after 0 to 50 ms; a third leaves before all is sent; half want a stream."""
    draw = random.Random(number)
    data = request(model, number, stream=draw.random() < 0.5)
    with closing(socket.create_connection(("127.0.0.1", tree.port))) as sock, suppress(OSError):
        sock.settimeout(60)
        sock.sendall(data[: draw.randrange(len(data))] if draw.random() < 1 / 3 else data)
        time.sleep(draw.uniform(0, 0.05))


def ask(tree, model, number):
    """A small request, streamed or not, read to its end."""
    body = {"model": model, "prompt": [number % 256, 1], "seed": number, "max_tokens": 8, "stream": number % 2 == 0}
    exchange = Exchange(tree, PATHS[0], body)
    assert exchange.response.status == 200
    exchange.response.read()
    exchange.close()


@pytest.mark.parametrize("count", [400, pytest.param(20_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_b22_churn_leaks_nothing(tree_of, count):
    tree = tree_of("--model-impl", "null")
    model = tree.model
    before = len(tree.log)
    watched(tree, min(count, 400), partial(come_and_go, tree, model))  # caches fill, allocators grow
    seen = watched(tree, count, partial(come_and_go, tree, model))
    assert tree.total("request_success_total") > count / 4
    assert_flat(seen)
    assert_flat(watched(tree, count, partial(ask, tree, model)))
    assert tree.log[before:] == ""
