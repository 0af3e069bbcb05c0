"""A request that kills its replica each time that it is computed: it ends with an error, and nobody else notices."""

import asyncio
import os
import re
import threading

import pytest
from chaos_run import under_fire
from chaos_streams import requests
from chaos_tree import UNDER_FIRE
from killing import kill
from tree import PATIENCE, Tree

pytestmark = [pytest.mark.serving, pytest.mark.timeout(600)]

POISON = "poison-1"
DEATHS = 3
SLOW = ("--null-step-ms", 400)
"""A step takes so long that a worker can be killed in the one that would give the poison its first token."""


class Assassin:
    """Kills whichever worker takes up the poison, before the step ends. `victims` are their pids."""

    def __init__(self, tree):
        self.victims = []
        self._tree = tree
        self._read = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    def _watch(self):
        while not self._done.wait(0.005):
            new = os.pread(self._tree._log.fileno(), 1 << 20, self._read).decode()
            new = new[: new.rfind("\n") + 1]
            self._read += len(new.encode())
            for line in new.splitlines():
                if re.search(rf"entered slot.*actor=worker-.*request_id={POISON}\b", line):
                    pid = self._tree.pid(re.search(r"actor=(worker-\S+)", line)[1])
                    kill(pid, "SIGKILL")
                    self.victims.append(pid)


@pytest.mark.parametrize(
    "shape", [pytest.param((), id="dp1"), pytest.param(("--dp", 2), id="dp2", marks=pytest.mark.long)]
)
def test_poison_is_contained(shape, home):
    async def fire(tree):
        async with under_fire(tree, requests(count=16, tokens=12)) as chaos:
            await chaos.learn()
            with Assassin(tree) as assassin:
                answer = await chaos.beside(poison(tree))
            await chaos.whole()
        return chaos, assassin, answer

    async def poison(tree):
        body = {"model": tree.model, "prompt": "kills", "max_tokens": 5}
        headers = {"x-request-id": POISON}
        return await asyncio.to_thread(tree.post, "/v1/completions", body, headers=headers, timeout=120 * PATIENCE)

    debug = ("--log-level", "debug")
    options = ("--model-impl", "null", *SLOW, "--executor", "broadcast", *shape, *debug, *UNDER_FIRE)
    with Tree(*options, env=home) as tree:
        tree.wait_ready(60)
        chaos, assassin, answer = asyncio.run(fire(tree))
        print(answer.text)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "poisoned")
        assert len(assassin.victims) == DEATHS
        assert not chaos.differences(), "the innocent have their answers"
        assert tree.text("kills", max_tokens=5), "what was poison may be asked again"
        tree.sentinel()
