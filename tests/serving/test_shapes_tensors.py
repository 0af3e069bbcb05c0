"""A47, D02: a real model cut over several workers, under load: each request gets what one device gives it alone.

And E02, E04: what such workers listen at for each other is on the loopback, and takes no harm from others.
"""

import random
from functools import partial

import pytest
import tiny_llama
from answers import joined, parsed
from exchange import PATHS, Exchange, body_of
from hostile import GREETING, held_connections, network_sockets, pickles
from shapes import in_shapes
from tree import Tree, in_parallel

pytestmark = [pytest.mark.serving, pytest.mark.timeout(600)]

COMPLETIONS = PATHS[0]
ROOM = 512
"""Tokens of KV cache in each replica."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Its answers depend on every token of a prompt."""
    return tiny_llama.write(tmp_path_factory.mktemp("shapes") / "tiny", seed=47, max_position_embeddings=1024)


@pytest.fixture(scope="module")
def one(model):
    """A single device with room for all."""
    with Tree("--model", model, "--no-prefix-caching") as tree:
        yield tree.wait_ready()


@pytest.fixture(scope="module", params=in_shapes("pp2", "tp2 pp2", long=("tp2", "dp2 tp2")))
def tree(model, request):
    """Room for few requests, and prompts that take several steps."""
    little = ("--kv-cache-tokens", ROOM, "--max-num-batched-tokens", 32)
    with Tree("--model", model, *request.param, *little) as shape:
        yield shape.wait_ready()


def prompt_of(draw, most=60):
    """Some begin alike."""
    return [120] * draw.choice((0, 16, 33)) + [draw.randrange(256) for _ in range(draw.randint(1, most))]


def settled(tree):
    """Nothing is left of any request, and no block is lost."""
    tree.settled()
    assert tree.complete([9] * ROOM, max_tokens=9, ignore_eos=True)["usage"]["completion_tokens"] == 1


DRAWN = {"temperature": 1.0, "seed": 7}
GREEDY = {"temperature": 0}
KINDS = [
    GREEDY,
    DRAWN,
    {**DRAWN, "n": 3},
    {**GREEDY, "logprobs": 3},
    {**DRAWN, "logprobs": 0, "n": 2},
    {**GREEDY, "echo": True, "logprobs": 2},
    {**DRAWN, "echo": True, "logprobs": 1, "top_k": 40},
    {**DRAWN, "top_p": 0.8, "min_p": 0.01},
    {**GREEDY, "repetition_penalty": 1.4},
    {**DRAWN, "frequency_penalty": 0.8, "presence_penalty": -0.5},
    {**GREEDY, "logit_bias": {str(token): 5 for token in range(0, 256, 3)}},
    {**GREEDY, "stop_token_ids": list(range(0, 250, 9)), "min_tokens": 4},
    {**DRAWN, "stop_token_ids": list(range(0, 250, 9)), "ignore_eos": False},
    {**GREEDY, "max_tokens": 1},
]


def answer(tree, fields):
    """Ids, reasons and log-probabilities of all choices."""
    choices = tree.complete(**fields)["choices"]
    scores = [choice["logprobs"] for choice in choices]
    return (
        [choice["token_ids"] for choice in choices],
        [choice["finish_reason"] for choice in choices],
        [known and [value for value in known["token_logprobs"] if value is not None] for known in scores],
        [known and [list(entry or ()) for entry in known["top_logprobs"] or ()] for known in scores],
    )


def assert_same(found, expected):
    """Log-probabilities are sums that are taken in another order; tokens are the same."""
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours[0], ours[1], ours[3]) == (theirs[0], theirs[1], theirs[3])
        for known, wanted in zip(ours[2], theirs[2], strict=True):
            assert known == (wanted and pytest.approx(wanted, abs=1e-3))


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=[pytest.mark.long])])
def test_every_kind_of_request_beside_all_others(one, tree, rounds):
    draw = random.Random(1)
    for _ in range(rounds):
        common = [{"prompt": prompt_of(draw), "max_tokens": 24, "ignore_eos": True} for _ in range(2 * len(KINDS))]
        requests = [
            {"return_token_ids": True} | fields | KINDS[number % len(KINDS)] for number, fields in enumerate(common)
        ]
        expected = [answer(one, fields) for fields in requests]
        assert_same(in_parallel([partial(answer, tree, fields) for fields in requests]), expected)
        assert_same(in_parallel([partial(answer, tree, fields) for fields in reversed(requests)]), expected[::-1])
    settled(tree)


def test_d02_a_burst_that_does_not_fit_equals_each_alone(one, tree):
    draw, before = random.Random(2), tree.total("num_preemptions_total")
    common = {"max_tokens": 60, "ignore_eos": True}
    requests = [{"prompt": prompt_of(draw, 20)} | common | draw.choice((GREEDY, DRAWN)) for _ in range(32)]
    expected = [one.text(**fields) for fields in requests]
    assert in_parallel([partial(tree.text, **fields) for fields in requests]) == expected
    assert tree.total("num_preemptions_total") > before
    settled(tree)


def stream(tree, fields, leaves, politely):
    """The text of a stream, or None if its client leaves after so many events."""
    exchange = Exchange(tree, COMPLETIONS, body_of(tree, COMPLETIONS, stream=True, **fields))
    if leaves is None:
        text = joined(parsed(exchange.raw_events())).texts[0]
        exchange.close()
        return text
    events = exchange.raw_events()
    for _ in range(leaves):
        next(events, None)
    (exchange.close if politely else exchange.reset)()
    return None


@pytest.mark.parametrize(
    ("rounds", "streams"), [(3, 24), pytest.param(50, 40, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_a47_half_of_the_clients_leave_steps_in_flight(one, tree, rounds, streams):
    """At any moment: before the first token, within a prompt that takes several steps, with their last token."""
    draw = random.Random(3)
    common = [
        {"prompt": prompt_of(draw, 100), "max_tokens": draw.randint(1, 60), "ignore_eos": True, "seed": number}
        for number in range(streams)
    ]
    expected = [one.text(**fields) for fields in common]
    for _ in range(rounds):
        leavers = set(draw.sample(range(streams), streams // 2))
        moments = [draw.choice((0, 0, 1, draw.randint(1, 60))) if i in leavers else None for i in range(streams)]
        polite = [draw.random() < 0.5 for _ in range(streams)]
        texts = in_parallel([partial(stream, tree, *one_of) for one_of in zip(common, moments, polite, strict=True)])
        assert texts == [None if i in leavers else text for i, text in enumerate(expected)]
        tree.settled()
    settled(tree)
    assert tree.text(**common[0]) == expected[0]
    assert "lost" not in tree.log


def listeners(tree):
    """The addresses at which the workers listen for each other."""
    beside = network_sockets(tree) - {("tcp", "127.0.0.1", tree.port)}
    assert {(protocol, host) for protocol, host, _ in beside} <= {("tcp", "127.0.0.1")}
    assert beside or "--pp" not in tree.process.args, "stages have some, and they are not seen"
    return [(host, port) for _, host, port in sorted(beside)]


def test_e02_workers_listen_on_the_loopback_alone(tree):
    listeners(tree)


def test_e04_garbage_at_the_listeners_of_workers_does_no_harm(tree, tmp_path):
    asked = {"prompt": [1] * 40, "max_tokens": 40, "ignore_eos": True} | DRAWN
    expected = tree.text(**asked)
    before, said = tree.processes().keys(), len(tree.log.splitlines())
    pwned = tmp_path / "pwned"
    noise = random.Random(4).randbytes(10_000)
    payloads = [b"", bytes(8), noise, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", GREETING[:10], *pickles(pwned)]
    for address in listeners(tree):
        with held_connections(address, payloads, 20):
            assert tree.text(**asked) == expected
    assert tree.text(**asked) == expected
    assert tree.processes().keys() == before
    assert len(tree.log.splitlines()) <= said + 1, tree.log
    assert not pwned.exists()
