"""D09: one long prompt holds up neither those who decode nor those who come with short ones."""

import threading
import time

import pytest
from exchange import PATHS, endless
from tree import Tree, until

pytestmark = [pytest.mark.serving, pytest.mark.timeout(300)]

COMPLETIONS = PATHS[0]
CHUNK, CHUNKS = 64, 100


@pytest.fixture(scope="module")
def tree():
    """Steps of 64 tokens and 10 ms."""
    with Tree("--model-impl", "null", "--null-step-ms", "10", "--max-num-batched-tokens", CHUNK) as one:
        yield one.wait_ready()


class Stream:
    """A request that runs beside the test; `arrivals` are the times of its events."""

    def __init__(self, tree, **fields):
        self.arrivals = []
        self._events = tree.events(COMPLETIONS, endless(tree, **fields))
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        for _ in self._events:
            self.arrivals.append(time.monotonic())

    def join(self):
        self._thread.join(120)
        return self


def steps(tree):
    return tree.total("engine_steps_total")


def test_d09_decodes_get_a_token_in_every_step(tree):
    """Counted in steps, not seconds: decodes of 200 tokens need 200 steps, with or without a prompt of 100 chunks."""
    begun = steps(tree)
    decodes = [Stream(tree, prompt=[number], max_tokens=200) for number in range(4)]
    until(lambda: all(len(one.arrivals) > 5 for one in decodes), 10)
    long = Stream(tree, prompt=[7] * (CHUNK * CHUNKS), max_tokens=1)
    until(lambda: tree.total("num_requests_running") == 5, 10)
    for one in decodes:
        one.join()
    assert (
        steps(tree) - begun < 290
    )  # they do not begin in the same step; one that waited for the prompt would need 300
    assert len(long.join().arrivals) >= 1
    tree.settled()


def test_d09_short_prompts_pass_a_long_one(tree):
    """A request of 5 tokens every 100 ms: each is answered long before the prompt of 100 chunks is computed."""
    decodes = [Stream(tree, prompt=[number], max_tokens=400) for number in range(4)]
    until(lambda: all(one.arrivals for one in decodes), 10)
    long = Stream(tree, prompt=[8] * (CHUNK * CHUNKS), max_tokens=1)
    until(lambda: tree.total("num_requests_running") == 5, 10)
    begun, short = steps(tree), []
    while not long.arrivals and len(short) < 8:
        short.append(Stream(tree, prompt=[9] * 5, max_tokens=1))
        time.sleep(0.1)
    for one in short:
        one.join()
    assert steps(tree) - begun < CHUNKS
    long.join()
    assert max(one.arrivals[0] for one in short) < long.arrivals[0]
    for one in decodes:
        one.join()
    tree.settled()


def test_d09_a_short_prompt_is_computed_in_its_first_step(tree):
    """The steps that pass between asking and the answer are few, whatever else is computed."""
    long = Stream(tree, prompt=[10] * (CHUNK * CHUNKS), max_tokens=1)
    until(lambda: tree.total("num_requests_running") == 1, 10)
    taken = []
    for number in range(8):
        before = steps(tree)
        tree.complete([number] * 5, max_tokens=1)
        if long.arrivals:
            break
        taken.append(steps(tree) - before)
    assert taken, "too slow a machine: the long prompt is through"
    assert min(taken) <= 8, taken
    long.join()
    tree.settled()


def test_d09_many_long_prompts_end_one_after_the_other(tree):
    """The oldest gets half of each step, the next half of the rest, so that none of them waits for all others."""
    longs = []
    for number in range(20, 26):
        longs.append(Stream(tree, prompt=[number] * (CHUNK * 10), max_tokens=1))
        until(
            lambda: (
                tree.total("num_requests_running") + tree.total("num_requests_waiting") >= len(longs)
                or longs[0].arrivals
            ),
            10,
        )
    firsts = [one.join().arrivals[0] for one in longs]
    assert firsts == sorted(firsts)
    tree.settled()
