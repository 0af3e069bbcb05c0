"""Many requests at once: each gets its own answer, all of it, in its place."""

import random
import socket
from collections import Counter
from contextlib import closing
from functools import partial

import null_model
import pytest
import tiny_llama
from answers import both_ways, joined, parsed, streamed, whole
from exchange import PATHS, Exchange, body_of, endless
from shapes import SHAPES
from tree import in_parallel, until

pytestmark = [pytest.mark.serving]

COMPLETIONS, CHAT = PATHS


# n and batches.


def test_b28_eight_choices_200_times(null_tree):
    for seed in range(200):
        expected = [null_model.answer([1], 12, seed=seed, choice=choice) for choice in range(8)]
        ask = streamed if seed % 2 else whole
        assert ask(null_tree, COMPLETIONS, prompt=[1], seed=seed, n=8, max_tokens=12).texts == expected


@pytest.mark.parametrize("path", PATHS)
def test_b28_choices_differ_and_are_the_same_in_both_modes(null_tree, path):
    for seed in range(10):
        assert len(set(both_ways(null_tree, path, seed=seed, n=8, max_tokens=12, ignore_eos=True).texts)) == 8
    unseeded = whole(null_tree, path, n=8, max_tokens=12, ignore_eos=True)
    assert len(set(unseeded.texts)) == 8


@pytest.mark.parametrize("n", [1, 2, 5])
def test_b28_prompts_times_choices(null_tree, n):
    """Prompt i has the choices i * n to i * n + n - 1, the same as it has alone; an echo tells which is whose."""
    prompts = ["a", "bb", "日本"]
    fields = {"n": n, "seed": 7, "max_tokens": 9, "ignore_eos": True}
    expected = [
        null_model.answer(list(prompt.encode()), 9, seed=7, choice=choice, ends=())
        for prompt in prompts
        for choice in range(n)
    ]
    batch = both_ways(null_tree, COMPLETIONS, prompt=prompts, **fields)
    assert batch.texts == expected
    assert batch.texts[n : 2 * n] == whole(null_tree, COMPLETIONS, prompt="bb", **fields).texts
    echoed = both_ways(null_tree, COMPLETIONS, prompt=prompts, **fields, echo=True).texts
    assert echoed == [prompts[i // n] + text for i, text in enumerate(expected)]


def test_b28_the_most_choices(null_tree):
    """1024, as many prompts as choices."""
    prompts = [[i % 256, i // 256] for i in range(512)]
    expected = [null_model.answer(ids, 3, seed=1, choice=choice) for ids in prompts for choice in range(2)]
    assert both_ways(null_tree, COMPLETIONS, prompt=prompts, n=2, seed=1, max_tokens=3).texts == expected


# Request ids.


@pytest.fixture(scope="module")
def two_frontends(tree_of):
    return tree_of("--model-impl", "null", "--frontends", 2, "--null-step-ms", 1)


def ask_as(tree, request_id, seed, path=COMPLETIONS, **fields):
    """The answer to a request of this id: its text, and the id that came back."""
    fields = {"prompt": [seed], "seed": seed, "max_tokens": 20} | fields
    exchange = Exchange(tree, path, body_of(tree, path, **fields), {"x-request-id": request_id})
    assert exchange.response.status == 200
    returned = exchange.response.getheader("x-request-id")
    if fields.get("stream"):
        text = joined(parsed(exchange.raw_events())).texts[0]
    else:
        text = exchange.json()["choices"][0]["text"]
    exchange.close()
    return text, returned


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "body"])
def test_b31_one_id_for_all(two_frontends, stream):
    """50 at once and 50 in a row, over both frontends: each gets its own answer and the id that it gave."""
    expected = [(null_model.answer([seed], 20, seed=seed), "same") for seed in range(50)]
    jobs = [partial(ask_as, two_frontends, "same", seed, stream=stream) for seed in range(50)]
    assert in_parallel(jobs) == expected
    assert [job() for job in jobs] == expected
    handled = {dict(labels)["actor"]: value for (name, labels), value in two_frontends.metrics().items()
               if name == "actor_messages_total"}  # fmt: skip
    assert handled["frontend-0"] > 100
    assert handled["frontend-1"] > 100


@pytest.mark.parametrize("given", ["a", "x" * 128, "A.b-c_9", "00000000-0000-0000-0000-000000000000"])
def test_b31_a_valid_id_comes_back(null_tree, given):
    assert ask_as(null_tree, given, 1)[1] == given


@pytest.mark.parametrize(
    "given", ["", "x" * 129, "x" * 10_240, "../../x", "a b", "a\tb", "é", "🌶️".encode(), "a,b", "%0a"]
)
def test_b31_an_invalid_id_is_replaced(null_tree, given):
    text, returned = ask_as(null_tree, given.encode() if isinstance(given, str) else given, 1)
    assert text == null_model.answer([1], 20, seed=1)
    assert returned.startswith("req_")
    assert len(returned) == 36


@pytest.mark.parametrize(
    "head", [b"x-request-id: a\r\nx-request-id: b", b"x-request-id: a\r\n b", b"x-request-id: a\nb"]
)
def test_b31_ids_that_are_no_single_line(null_tree, head):
    """Two of them, a folded one, one with a bare line feed: an answer with an id of ours, or 400."""
    with closing(socket.create_connection(("127.0.0.1", null_tree.port))) as sock:
        sock.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n\r\n")
        answer = sock.recv(65536)
    assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400"))
    if b"200 OK" in answer:
        assert b"\r\nx-request-id: req_" in answer


@pytest.mark.parametrize("path", PATHS)
def test_b31_an_id_in_the_body_is_no_field(null_tree, path):
    response = null_tree.post(path, body_of(null_tree, path, request_id="same"))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "request_id"


def test_b31_answers_have_ids_of_their_own(two_frontends):
    """Whatever the requests are called, no two answers are."""
    ids = in_parallel([partial(two_frontends.complete, "x", max_tokens=1) for _ in range(40)])
    assert len({answer["id"] for answer in ids}) == 40


# Limits.


@pytest.mark.parametrize(
    ("seats", "waiting"),
    [(64, 2048), pytest.param(256, 20_480, marks=[pytest.mark.long, pytest.mark.timeout(900)])],
)
def test_b32_a_crowd_takes_nothing_from_those_before_it(tree_of, seats, waiting):
    """A stream that began first gets all its tokens; what is too much is refused when it comes, and ends nobody."""
    tree = tree_of("--model-impl", "null", "--null-step-ms", 5, "--max-num-seqs", seats, "--max-waiting", waiting)
    first = Exchange(tree, COMPLETIONS, endless(tree, prompt=[1], seed=1, max_tokens=500, stream=True))
    until(lambda: tree.total("num_requests_running") == 1, 5)
    seated = Exchange(tree, COMPLETIONS, endless(tree, n=seats - 1, stream=True))
    until(lambda: tree.total("num_requests_running") == seats, 5)
    crowd = body_of(tree, COMPLETIONS, prompt=[[i % 128] for i in range(1024)], seed=3, max_tokens=2)
    queued = [Exchange(tree, COMPLETIONS, crowd) for _ in range(waiting // 1024)]
    until(lambda: tree.total("num_requests_waiting") == waiting, 60)
    for stream in (True, False):
        for path in PATHS:
            refused = Exchange(tree, path, body_of(tree, path, stream=stream))
            assert refused.response.status == 429
            assert refused.response.getheader("retry-after")
            assert refused.json()["error"]["type"] == "rate_limit_error"
            refused.close()
    seated.close()
    expected = [null_model.answer([i % 128], 2, seed=3) for i in range(1024)]
    for exchange in queued:
        assert [choice["text"] for choice in exchange.json()["choices"]] == expected
        exchange.close()
    text = joined(parsed(first.raw_events())).texts[0]
    assert text == null_model.answer([1], 500, seed=1, ends=())
    tree.settled()


# Everything at once.


def plan(draw, number):
    """One request: short or long, its prompt of a family or its own, and after how many events its client leaves."""
    family = [draw.randrange(4)] * draw.choice([0, 16, 40])
    prompt = family + [draw.randrange(256) for _ in range(draw.choice([3, 8, 100]))] + [number % 256, number // 256]
    leaves = draw.randrange(30) if draw.random() < 0.3 else None
    fields = {"prompt": prompt, "seed": draw.randrange(2**40), "max_tokens": draw.randint(1, 60), "ignore_eos": True}
    return fields, leaves, leaves is not None or draw.random() < 0.5


def outcome(tree, fields, leaves, stream):
    """What the client read of its answer, and whether that is all."""
    exchange = Exchange(tree, COMPLETIONS, body_of(tree, COMPLETIONS, stream=stream, **fields))
    if leaves is None and not stream:
        text = exchange.json()["choices"][0]["text"]
        exchange.close()
        return text, True
    read = exchange.leave_after(10_000 if leaves is None else leaves)
    whole = bool(read) and read[-1] == b"data: [DONE]\n\n"
    events = parsed([*read, b"data: [DONE]\n\n"] if not whole else read)
    return "".join(choice["text"] for event in events for choice in event["choices"]), whole


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """A real model, each of whose tokens depends on all before it."""
    return tiny_llama.write(tmp_path_factory.mktemp("noise") / "tiny", seed=33, max_position_embeddings=1024)


@pytest.mark.parametrize(
    ("workers", "requests"),
    [(16, 10), pytest.param(64, 200, marks=[pytest.mark.long, pytest.mark.timeout(3000)])],
)
@pytest.mark.parametrize("tensors", [False, True], ids=["null", "tensors on dp2 tp2"])
def test_b33_no_answer_goes_to_another(request, tree_of, null_tree, workers, requests, tensors):
    """Two replicas whose caches hold few requests, prefixes in common, three in ten clients that leave.

    What tensors give is compared with what the same ranks gave to each request alone; four workers ask the same.
    """
    model = ("--model", request.getfixturevalue("noise")) if tensors else ("--model-impl", "null")
    two = SHAPES["dp2 tp2"] if tensors else ("--dp", 2, "--null-step-ms", 1)
    tree = tree_of(
        *model, *two, "--frontends", 2, "--detokenizers", 2, "--kv-cache-tokens", 224, "--max-num-batched-tokens", 64
    )
    draw, same = random.Random(33), 4 if tensors else 1
    plans = [[plan(draw, worker * requests + i) for i in range(requests)] for worker in range(workers // same)] * same
    idle = tree if tensors else null_tree
    alone = [[idle.text(**fields) for fields, *_ in row] for row in plans[: workers // same]] * same

    def work(row):
        return [outcome(tree, *one) for one in row]

    results = in_parallel([partial(work, row) for row in plans])
    kinds = Counter()
    for row, answers, expected in zip(plans, results, alone, strict=True):
        for (_, leaves, _), (text, is_whole), reference in zip(row, answers, expected, strict=True):
            kinds["whole" if is_whole else "left"] += 1
            assert is_whole or leaves is not None
            assert text == reference if is_whole else reference.startswith(text)
    assert kinds["left"] > workers * requests / 10
    assert tree.total("num_preemptions_total") > 0
    assert tree.total("prefix_cache_hits_total") > 0
    tree.settled()
