"""D01, D02, D10: a KV cache that is too small for one, for many, and for the one at the head of the queue."""

import random
import threading
import time

import pytest
from beside import Beside
from exchange import PATHS, Exchange, endless
from null_model import decoded, generated
from refusals import refused
from shapes import ONE, in_shapes
from tree import PATIENCE, Tree, in_parallel, until

pytestmark = [pytest.mark.serving, pytest.mark.timeout(600)]

COMPLETIONS, CHAT = PATHS
LETTERS = range(97, 123)


# D01.


@pytest.fixture(scope="module", params=[ONE, *in_shapes("tp2 pp2", long=("tp2", "pp2", "dp2 tp2"))])
def small_tree(request):
    """128 tokens of KV cache in each replica, for sequences of up to 1024."""
    short = ("--kv-cache-tokens", 128, "--max-model-len", 1024)
    with Tree("--model-impl", "null", "--null-step-ms", "1", *short, *request.param) as tree:
        yield tree.wait_ready()


def test_d01_the_start_says_that_the_cache_is_short(small_tree):
    assert "128" in small_tree.log
    assert any("1,024" in line or "1024" in line for line in small_tree.log.splitlines()), small_tree.log
    assert small_tree.client.get("/v1/models").json()["data"][0]["max_model_len"] == 129  # the last token needs no room


@pytest.mark.parametrize("length", [129, 200, 1023, 1024, 5000])
@pytest.mark.parametrize("path", PATHS)
def test_d01_a_prompt_that_can_never_fit_is_refused_at_once(small_tree, path, length):
    steps = small_tree.total("engine_steps_total")
    about = (
        {"prompt": "x" * length} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "x" * length}]}
    )
    error = refused(small_tree, path, about)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == ("prompt" if path == COMPLETIONS else "messages")
    assert small_tree.total("engine_steps_total") == steps


def test_d01_an_answer_ends_where_the_cache_does(small_tree):
    """100 + 500 tokens: what fits is generated, and the last token needs no room of its own."""
    body = small_tree.complete([7] * 100, max_tokens=500, temperature=0, ignore_eos=True)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 29
    assert body["choices"][0]["text"] == decoded(generated([7] * 100, 29, ends=()))
    assert small_tree.complete([7] * 128, max_tokens=500, ignore_eos=True)["usage"]["completion_tokens"] == 1
    small_tree.settled()


def test_d01_a_small_one_is_served_behind_them_at_once(small_tree):
    """One that can never fit, one that outgrows the cache, and then one of 5 tokens: it is there within 2 s."""
    refused(small_tree, COMPLETIONS, {"prompt": [1] * 200})
    hungry = Exchange(small_tree, COMPLETIONS, endless(small_tree, prompt=[7] * 100, max_tokens=500))
    began = time.monotonic()
    assert small_tree.complete([1] * 5, max_tokens=5, ignore_eos=True)["usage"]["completion_tokens"] == 5
    assert time.monotonic() - began < 2 * PATIENCE
    assert hungry.json()["choices"][0]["finish_reason"] == "length"
    hungry.close()
    small_tree.settled()


def test_d01_nobody_waits_behind_what_never_fits(small_tree):
    """Hopeless requests, hungry ones and small ones at once: each gets what it can have."""
    hopeless = [lambda: refused(small_tree, COMPLETIONS, {"prompt": [1] * 200})] * 4
    hungry = [lambda i=i: small_tree.complete([i] * 100, max_tokens=500, ignore_eos=True)["usage"] for i in range(4)]
    small = [lambda i=i: small_tree.complete([i], max_tokens=5, ignore_eos=True)["usage"] for i in range(8)]
    results = in_parallel([*hopeless, *hungry, *small])
    assert all(result["code"] == "context_length_exceeded" for result in results[:4])
    assert [result["completion_tokens"] for result in results[4:]] == [29] * 4 + [5] * 8
    small_tree.settled()


@pytest.mark.parametrize("tokens", [16, 17, 31, 32])
def test_d01_the_smallest_caches(start, tokens):
    """One block, two blocks, and what is left over of a block and not used."""
    whole = tokens // 16 * 16
    tree = start("--model-impl", "null", "--kv-cache-tokens", tokens)
    assert tree.complete([1] * whole, max_tokens=9, ignore_eos=True)["usage"]["completion_tokens"] == 1
    assert tree.complete([1], max_tokens=99, ignore_eos=True)["usage"]["completion_tokens"] == whole
    assert refused(tree, COMPLETIONS, {"prompt": [1] * (whole + 1)})["code"] == "context_length_exceeded"
    results = in_parallel([lambda i=i: tree.complete([i], max_tokens=99, ignore_eos=True) for i in range(6)])
    assert [body["usage"]["completion_tokens"] for body in results] == [whole] * 6
    tree.settled()


# D02.


def client(tree, seed, seconds, wrong, priorities):
    """Sends requests of about 20 + 60 tokens, one after the other; leaves a third of them. Returns how many it sent."""
    rng, end, sent = random.Random(seed), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        prompt = [120] * rng.choice((0, 16, 16)) + rng.choices(LETTERS, k=rng.randint(4, 20))
        count, own_seed = rng.randint(30, 60), rng.randint(1, 2**40)
        sent += 1
        fields = {"max_tokens": count, "seed": own_seed, "ignore_eos": True, "priority": rng.choice(priorities)}
        if rng.random() < 0.33:
            body = endless(tree, prompt=prompt, stream=True, **fields)
            Exchange(tree, COMPLETIONS, body).leave_after(rng.randint(0, 40))
            continue
        text = tree.streamed_text(prompt, **fields)
        if text != decoded(generated(prompt, count, seed=own_seed, ends=())):
            wrong.append((prompt, count, own_seed, text))
    return sent


class Watch(Beside):
    """Looks four times a second whether whoever waits waits for somebody who moves."""

    def __init__(self, tree):
        super().__init__(0.25)
        self._tree = tree
        self._tokens, self._since = -1, time.monotonic()
        self.stood_still = []

    def step(self):
        now, metrics = time.monotonic(), self._tree.metrics()
        made = sum(value for (name, _), value in metrics.items() if name == "iteration_tokens_total")
        waits = sum(value for (name, _), value in metrics.items() if name == "num_requests_waiting")
        if made != self._tokens or not waits:
            self._tokens, self._since = made, now
        elif now - self._since > 5:
            self.stood_still.append(metrics)
            self._since = now


@pytest.mark.parametrize("seconds", [3, pytest.param(150, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("options", "priorities"),
    [
        ((), [0]),
        (("--no-prefix-caching",), [0]),
        (("--max-num-batched-tokens", 16), [0]),
        (("--scheduling-policy", "priority"), [-1000, -1, 0, 0, 1, 3]),
        (("--pp", 2), [0]),
        (("--tp", 2, "--pp", 2, "--max-num-batched-tokens", 16, "--scheduling-policy", "priority"), [-2, 0, 0, 1]),
        pytest.param(("--pp", 2, "--no-prefix-caching"), [0], marks=[pytest.mark.long]),
        pytest.param(("--tp", 2), [0], marks=[pytest.mark.long]),
        pytest.param(("--pp", 4), [0], marks=[pytest.mark.long]),
    ],
    ids=str,
)
def test_d02_under_pressure_all_move_and_none_is_changed(start, options, priorities, seconds):
    """Thirty-two at a time in 256 tokens, come and go at random: each that stays gets what it gets alone."""
    tree = start("--model-impl", "null", "--null-step-ms", "1", "--kv-cache-tokens", 256, *options)
    wrong = []
    with Watch(tree) as watch:
        sent = in_parallel([lambda seed=seed: client(tree, seed, seconds, wrong, priorities) for seed in range(32)])
    assert all(isinstance(number, int) and number > 0 for number in sent), sent
    assert not wrong
    assert not watch.stood_still
    tree.settled()
    preemptions = tree.total("num_preemptions_total")
    assert preemptions > 0
    assert (
        tree.complete([9] * 256, max_tokens=9, ignore_eos=True)["usage"]["completion_tokens"] == 1
    )  # no block is lost
    print(f"{sum(sent)} requests and {preemptions:.0f} preemptions in {seconds} s")


def test_d02_a_burst_equals_each_alone(start):
    """32 requests of 20 + 60 tokens in 256, greedy."""
    tree = start("--model-impl", "null", "--kv-cache-tokens", 256)
    prompts = [[random.Random(i).choice(LETTERS) for _ in range(20)] for i in range(32)]
    fields = {"max_tokens": 60, "temperature": 0, "ignore_eos": True}
    together = in_parallel([lambda p=p: tree.text(p, **fields) for p in prompts])
    assert together == [decoded(generated(p, 60, ends=())) for p in prompts]
    assert together == [tree.text(p, **fields) for p in prompts]
    assert 0 < tree.total("num_preemptions_total") < 32 * 60
    tree.settled()


# D10.


def test_d10_nobody_passes_the_head(start):
    """Strict order of arrival: a large request waits for blocks, small ones wait behind it, and all are served."""
    tree = start("--model-impl", "null", "--null-step-ms", "100", "--kv-cache-tokens", 256)
    arrivals = {name: [] for name in ("first", "large", "small 0", "small 1", "small 2")}

    def begin(name, prompt, count):
        def read():
            for _ in tree.events(COMPLETIONS, {"prompt": prompt, "max_tokens": count, "ignore_eos": True}):
                arrivals[name].append(time.monotonic())

        thread = threading.Thread(target=read)
        thread.start()
        return thread

    threads = [begin("first", [1] * 100, 15)]
    until(lambda: arrivals["first"], 10)
    threads.append(begin("large", [2] * 200, 3))
    until(lambda: tree.total("num_requests_waiting") == 1, 10)
    threads += [begin(f"small {number}", [3 + number], 3) for number in range(3)]
    until(lambda: tree.total("num_requests_waiting") == 4, 10)
    for thread in threads:
        thread.join(60)
    ended = arrivals.pop("first")[-1]
    assert all(times and times[0] > ended for times in arrivals.values()), (ended, arrivals)
    tree.settled()
