"""The counts of a whole tree add up, however many processes counted them."""

import random
from functools import partial

import pytest
from exchange import PATHS, Exchange, body_of
from tree import in_parallel, until

pytestmark = [pytest.mark.serving]

COMPLETIONS = PATHS[0]

TREES = {
    "one of each": (),
    "two frontends": ("--frontends", 2),
    "two of each": ("--frontends", 2, "--detokenizers", 2, "--dp", 2),
}


@pytest.fixture(scope="module", params=TREES)
def tree(request, tree_of):
    options = ("--null-step-ms", 1, "--kv-cache-tokens", 2048, "--max-num-seqs", 16, "--max-waiting", 40)
    return tree_of("--model-impl", "null", *options, *TREES[request.param])


INFINITE = ("le", "+Inf")


def by_reason(tree):
    found = (
        (dict(labels), value) for (name, labels), value in tree.metrics().items() if name == "request_success_total"
    )
    return {labels["finished_reason"]: value for labels, value in found}


def test_d08_every_accepted_choice_ends_once_by_its_reason(tree):
    """What is asked is known: 20 choices stop, 30 end by length, 25 are left, 5 are never accepted."""
    before, accepted = by_reason(tree), tree.total("requests_accepted_total")
    stop = {"logit_bias": {"65": 100}, "stop": "AAA", "max_tokens": 50}
    length = {"prompt": ["a", "b", "c"], "n": 2, "max_tokens": 7, "ignore_eos": True}
    for _ in range(20):
        tree.complete("x", **stop)
    for _ in range(5):
        tree.complete(**length)
    for _ in range(5):
        leave(tree, n=5)
    for _ in range(5):
        assert tree.post(COMPLETIONS, body_of(tree, COMPLETIONS, prompt=[1] * 3000)).status_code == 400
    until(lambda: tree.total("requests_accepted_total") == sum(by_reason(tree).values()), 5)
    assert tree.total("requests_accepted_total") - accepted == 20 + 30 + 25
    gained = {reason: value - before.get(reason, 0) for reason, value in by_reason(tree).items()}
    assert {reason: value for reason, value in gained.items() if value} == {"stop": 20, "length": 30, "abort": 25}
    assert_histograms_reconcile(tree)


def leave(tree, n):
    exchange = Exchange(
        tree, COMPLETIONS, body_of(tree, COMPLETIONS, stream=True, max_tokens=4000, ignore_eos=True, n=n)
    )
    next(exchange.raw_events())
    exchange.close()


def assert_histograms_reconcile(tree):
    """Choices and tokens are the same numbers however they are added up."""
    samples, reasons = tree.metrics(), by_reason(tree)
    total = {name: tree.total(name) for name, _ in samples}
    finished = reasons.get("stop", 0) + reasons.get("length", 0)
    assert total["request_generation_tokens_count"] == sum(reasons.values())
    assert total["request_generation_tokens_sum"] == total["generation_tokens_total"]
    assert total["request_prompt_tokens_count"] == finished
    assert total["request_prompt_tokens_sum"] == total["prompt_tokens_total"]
    assert total["e2e_request_latency_seconds_count"] == finished
    assert total["time_to_first_token_seconds_count"] <= sum(reasons.values())
    assert (
        total["inter_token_latency_seconds_count"] + total["time_to_first_token_seconds_count"]
        <= total["generation_tokens_total"]
    )
    for name in {name.removesuffix("_bucket") for name in total if name.endswith("_bucket")}:
        last = (value for (found, labels), value in samples.items() if found == f"{name}_bucket" and INFINITE in labels)
        assert sum(last) == total[f"{name}_count"]


def test_d08_a_storm_reconciles(tree):
    """All kinds at once, some refused by a full queue, some left: nothing is lost and nothing counts twice."""
    draw = random.Random(8)

    def one(seed):
        n, tokens = draw.randint(1, 8), draw.randint(1, 40)
        exchange = Exchange(
            tree, COMPLETIONS, body_of(tree, COMPLETIONS, stream=True, n=n, max_tokens=tokens, seed=seed)
        )
        if exchange.response.status == 200:
            exchange.leave_after(draw.randrange(60))
            return 200
        exchange.response.read()
        exchange.close()
        return exchange.response.status

    statuses = set(in_parallel([partial(one, seed) for seed in range(150)]))
    assert statuses <= {200, 429}
    tree.settled()
    until(lambda: tree.total("requests_accepted_total") == sum(by_reason(tree).values()), 5)
    assert_histograms_reconcile(tree)


def test_d08_a_replica_that_dies_changes_no_count(tree_of):
    tree = tree_of("--model-impl", "null", "--null-step-ms", 20, "--frontends", 2, "--max-restarts", 100)
    body = body_of(tree, COMPLETIONS, stream=True, n=3, max_tokens=100, ignore_eos=True)
    exchanges = [Exchange(tree, COMPLETIONS, body) for _ in range(4)]
    for exchange in exchanges:
        next(exchange.raw_events())
    tree.kill("engine-0")
    for exchange in exchanges:
        exchange.response.read()
    until(lambda: tree.client.get("/ready").status_code == 200, 10)
    until(lambda: tree.total("requests_accepted_total") == sum(by_reason(tree).values()), 5)
    assert by_reason(tree) == {"length": 12}
    assert tree.total("requests_resumed_total") == 12
    assert tree.total("generation_tokens_total") == 12 * 100
    assert_histograms_reconcile(tree)
