"""Long load with aborts: memory, descriptors, KV blocks and tables of requests are at the end what they were.

TEST_SOAK_MINUTES (30) is how long. Load and rest take turns; what is left is measured in each rest.
"""

import asyncio
import os
import random
import time
from contextlib import AsyncExitStack

import httpx
import pytest
from asking import address
from chaos_streams import Stream, requests
from chaos_tree import footprint
from tree import Tree

from actorlm import Client

MINUTES = float(os.environ.get("TEST_SOAK_MINUTES", "30"))
pytestmark = [pytest.mark.serving, pytest.mark.long, pytest.mark.timeout(60 * MINUTES + 1200)]

ROUNDS = 15
AT_ONCE = 8
ABORTED = 0.3
GROWTH_KIB = 3 * 1024
"""Memory that a process may have gained between the first half of the rests and the last: allocators are no clocks."""
COMMON = ("--kv-cache-tokens", 8192, "--max-num-batched-tokens", 256)
NULL = ("--model-impl", "null", "--null-step-ms", 2, "--dp", 2, "--executor", "broadcast", *COMMON)


class Load:
    """Requests of all sorts to one tree; `ended` and `aborted` count them."""

    def __init__(self, tree, http, client):
        self.tree = tree
        self.ended = 0
        self.aborted = 0
        self._http = http
        self._client = client
        self._sorts = requests(tokens=100)
        self._draw = random.Random(0)

    async def run(self, seconds):
        """So many at once, one after another, until the time is over and all have ended."""
        deadline = time.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(self._one_after_another(deadline))

    async def _one_after_another(self, deadline):
        while time.monotonic() < deadline:
            stream = Stream(self._draw.choice(self._sorts))
            reading = asyncio.create_task(stream.read(self.tree, self._http, self._client))
            if self._draw.random() < ABORTED:
                await asyncio.wait([reading], timeout=self._draw.uniform(0, 1))
                reading.cancel()
                await asyncio.wait([reading])
                self.aborted += 1
            else:
                await reading
                assert not stream.failure, f"{stream.request}: {stream.failure}"
                self.ended += 1

    def rest(self):
        """{actor: (KiB, descriptors)} once nothing runs, waits or holds a block, and all have ended."""
        self.tree.settled(30)
        assert self.tree.total("requests_accepted_total") == self.tree.total("request_success_total")
        return footprint(self.tree)


async def soak(trees):
    """The rests of each tree, and what was asked of it."""
    async with AsyncExitStack() as stack:
        limits = httpx.Limits(max_connections=None, keepalive_expiry=1)
        loads = []
        for tree in trees:
            http = await stack.enter_async_context(httpx.AsyncClient(base_url=tree.url, timeout=None, limits=limits))
            client = await stack.enter_async_context(Client(address(tree)))
            loads.append(Load(tree, http, client))
        rests = [[] for _ in trees]
        for _ in range(ROUNDS):
            await asyncio.gather(*(load.run(60 * MINUTES / ROUNDS) for load in loads))
            await asyncio.sleep(2)  # the connections that were kept are closed
            for found, load in zip(rests, loads, strict=True):
                found.append(await asyncio.to_thread(load.rest))
    return rests, loads


def test_nothing_grows(tiny_model, home):
    with (
        Tree(*NULL, env=home) as null,
        Tree(tiny_model, "--dtype", "float32", *COMMON, env=home) as tiny,
    ):
        trees = [null.wait_ready(60), tiny.wait_ready(60)]
        rests, loads = asyncio.run(soak(trees))
        for found, load in zip(rests, loads, strict=True):
            print(f"{load.ended} requests read to the end, {load.aborted} aborted")
            assert_flat(found)
            assert load.tree.stop() == (0, {})


def assert_flat(rests):
    """After the first third, in which pools and caches fill."""
    settled = rests[len(rests) // 3 :]
    first, last = settled[: len(settled) // 2], settled[len(settled) // 2 :]
    grown = {}
    for actor in rests[0]:
        memory = [min(one[actor][0] for one in part) for part in (first, last)]
        files = [min(one[actor][1] for one in part) for part in (first, last)]
        print(f"{actor:14} KiB {[one[actor][0] for one in rests]} descriptors {[one[actor][1] for one in rests]}")
        if memory[1] - memory[0] > GROWTH_KIB or files[1] > files[0] + 1:
            grown[actor] = memory, files
    assert not grown
