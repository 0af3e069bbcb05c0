"""D03: what the prefix cache gives back is what would have been computed, whatever happened in between."""

import random

import pytest
import tiny_llama as tiny
from exchange import PATHS, Exchange, body_of
from shapes import ONE, in_shapes
from tree import Tree, in_parallel, until

pytestmark = [pytest.mark.serving, pytest.mark.timeout(600)]

COMPLETIONS = PATHS[0]
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, "logprobs": 2, "return_token_ids": True}
RNG = random.Random(3)
PROMPTS = [[RNG.randrange(256) for _ in range(512)] for _ in range(16)]
RELATED = [PROMPTS[0][:length] + PROMPTS[1][length:] for length in (16, 17, 31, 32, 33, 255, 256, 511)]
"""Prompts that begin as another one does, up to the edges of blocks."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A real model of noise: its answer to a prompt depends on every token of it."""
    return tiny.write(tmp_path_factory.mktemp("prefix") / "tiny", seed=4, max_position_embeddings=1024)


@pytest.fixture(scope="module")
def expected(model):
    """The ids of each prompt's answer from a tree without a prefix cache, alone."""
    with Tree("--model", model, "--no-prefix-caching") as tree:
        tree.wait_ready()
        answers = [ids(tree, prompt) for prompt in PROMPTS + RELATED]
    assert len(set(map(tuple, answers))) == len(answers)
    return answers


@pytest.fixture(scope="module", params=[ONE, *in_shapes(long=("tp2", "pp2", "tp2 pp2"))])
def tree(model, request):
    with Tree("--model", model, *request.param) as one:
        yield one.wait_ready()


@pytest.fixture(scope="module", params=[ONE, *in_shapes("tp2 pp2", long=("tp2", "pp2"))])
def small_tree(model, request):
    """Room for two of the prompts."""
    with Tree("--model", model, "--kv-cache-tokens", 1120, *request.param) as one:
        yield one.wait_ready()


def ids(tree, prompt, **fields):
    """The token ids of an answer that has log-probabilities too."""
    return ids_of(tree.complete(prompt, **GREEDY | fields))


def ids_of(body):
    [choice] = body["choices"]
    assert len(choice["logprobs"]["token_logprobs"]) == len(choice["token_ids"])
    return choice["token_ids"]


def cached(body):
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_d03_four_times_in_a_row(tree, expected):
    for prompt, answer in zip(PROMPTS, expected, strict=False):
        bodies = [tree.complete(prompt, **GREEDY) for _ in range(4)]
        assert [ids_of(body) for body in bodies] == [answer] * 4
        assert [cached(body) for body in bodies][1:] == [496] * 3  # a whole block less: one token is always computed


def test_d03_prompts_that_share_a_beginning(tree, expected):
    for prompt, answer in zip(RELATED, expected[16:], strict=True):
        assert ids(tree, prompt) == answer
    assert [ids(tree, prompt) for prompt in RELATED] == expected[16:]


def test_d03_beside_others(tree, expected):
    prompts = (PROMPTS + RELATED) * 2
    order = random.Random(5).sample(range(len(prompts)), len(prompts))
    answers = in_parallel([lambda i=i: ids(tree, prompts[i]) for i in order])
    assert answers == [expected[i % 24] for i in order]
    tree.settled()


def test_d03_after_eviction(small_tree, expected):
    """Each prompt pushes out the one before the last; every third comes back and is found in part or not at all."""
    for round_of in range(2):
        for index in range(16):
            for one in (index, (index + round_of) % 16, index // 3):
                assert ids(small_tree, PROMPTS[one]) == expected[one]
    small_tree.settled()


def test_d03_after_a_preemption(small_tree, expected):
    before = small_tree.total("num_preemptions_total")
    alone = [ids(small_tree, prompt, max_tokens=60) for prompt in PROMPTS[:4]]
    for _ in range(3):
        assert in_parallel([lambda p=p: ids(small_tree, p, max_tokens=60) for p in PROMPTS[:4]]) == alone
    assert [answer[:12] for answer in alone] == expected[:4]
    small_tree.settled()
    assert small_tree.total("num_preemptions_total") > before


@pytest.mark.parametrize("shape", [ONE, *in_shapes("pp2", long=("tp2", "tp2 pp2"))])
def test_d03_after_clients_left_in_the_middle_of_their_prompts(model, start, expected, shape):
    """Chunks of 16 tokens: a prompt takes 32 steps, in any of which its client may leave."""
    tree = start("--model", model, "--max-num-batched-tokens", 16, *shape)
    for index, prompt in enumerate(PROMPTS[:8]):
        steps = tree.total("engine_steps_total")
        exchange = Exchange(tree, COMPLETIONS, body_of(tree, COMPLETIONS, prompt=prompt, stream=True, **GREEDY))
        until(lambda at=steps + 4 * index: tree.total("engine_steps_total") > at, 10, every=0.001)
        exchange.reset()
        assert ids(tree, prompt) == expected[index]
    assert [ids(tree, prompt) for prompt in PROMPTS[:8]] == expected[:8]
    tree.settled()


@pytest.mark.parametrize(
    "shape", [pytest.param(("--dp", 2, "--executor", "broadcast"), id="dp2"), *in_shapes("dp2 tp2")]
)
def test_d03_two_replicas_and_processes_for_their_workers(model, start, expected, shape):
    tree = start("--model", model, *shape)
    for _ in range(2):
        assert in_parallel([lambda p=p: ids(tree, p) for p in PROMPTS]) == expected[:16]
    tree.settled()


def test_d03_sampled_answers_too(tree):
    fields = {"temperature": 1.0, "seed": 9}
    first = [ids(tree, prompt, **fields) for prompt in PROMPTS[:4]]
    assert [ids(tree, prompt, **fields) for prompt in PROMPTS[:4]] == first
    assert in_parallel([lambda p=p: ids(tree, p, **fields) for p in PROMPTS[:4]]) == first
