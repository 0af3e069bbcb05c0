"""C04, C19: every number at every limit, through a real sampler; seeds."""

import itertools
import json
import math
from operator import eq

import pytest
import tiny_llama as tiny
from exchange import PATHS
from refusals import error_of
from tree import PATIENCE, Tree, in_parallel

pytestmark = [pytest.mark.serving, pytest.mark.timeout(300)]

COMPLETIONS, CHAT = PATHS
ABOUT = {COMPLETIONS: {"prompt": "hello"}, CHAT: {"messages": [{"role": "user", "content": "hello"}]}}

LENGTHS = ["max_tokens", "max_completion_tokens", "min_tokens", "truncate_prompt_tokens"]
PENALTIES = ["presence_penalty", "frequency_penalty", "repetition_penalty", "length_penalty"]
SAMPLING = ["temperature", "top_p", "top_k", "min_p", "seed", "logprobs", "top_logprobs", "prompt_logprobs"]
PARAMETERS = ["n", "best_of", "priority", "stream", "stop", "echo", "ignore_eos", *LENGTHS, *PENALTIES, *SAMPLING]
INTEGERS = [-1, 0, 1, 2, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63) - 1]
FLOATS = [
    "-0.0",
    "0.0",
    "1.0",
    "1.5",
    "1e-300",
    "5e-324",
    "1e308",
    "-1e308",
    "1e309",
    "1e400",
    "NaN",
    "Infinity",
    "-Infinity",
]
OTHERS = ['"1"', '""', '"NaN"', "true", "null", "[]", "{}", "[1]", "00", "1e", "+1", "0x1", "1_0", "1" * 5000]
LITERALS = [*map(str, INTEGERS), *FLOATS, *OTHERS]

SAMPLED = {
    "temperature": [0, 5e-324, 1e-308, 1e-300, 1e-45, 1e-10, 1.0, 2.0],
    "top_p": [5e-324, 1e-300, 1e-10, 0.5, math.nextafter(1, 0), 1.0],
    "top_k": [-1, 0, 1, 2, 258, 259, 2**31 - 1],
    "min_p": [0.0, 5e-324, 1e-10, math.nextafter(1, 0), 1.0],
}

USUAL = (1.0, 1.0, 0, 0.0)
"""The defaults. Two parameters at a time have every combination of other values."""


@pytest.fixture(scope="module")
def real_tree(tmp_path_factory):
    """A real sampler, behind a model of noise."""
    directory = tiny.write(tmp_path_factory.mktemp("noise") / "tiny", seed=2, max_position_embeddings=512)
    with Tree("--model", directory) as tree:
        yield tree.wait_ready()


def body_with(tree, path, name, literal):
    """A body in which one field is written as it stands, be it JSON or not."""
    fields = {"model": tree.model} | ABOUT[path] | ({} if name.startswith("max_") else {"max_tokens": 4})
    return (json.dumps(fields)[:-1] + f', "{name}": {literal}}}').encode()


@pytest.mark.parametrize("name", PARAMETERS)
def test_c04_numbers(null_tree, name):
    """Accepted or 400 about that field, within a second; never anything else, and nothing is kept of it."""
    frontend = null_tree.pid("frontend-0")
    before = null_tree.memory_kib(frontend)
    for path, literal in itertools.product(PATHS, LITERALS):
        content = body_with(null_tree, path, name, literal)
        answer = null_tree.client.post(path, content=content, headers={"content-type": "application/json"})
        assert answer.status_code in (200, 400), (literal, answer.text)
        assert answer.elapsed.total_seconds() < PATIENCE, literal
        if answer.status_code == 400:
            error = error_of(answer)
            named = (error["param"] or "").startswith(name)
            assert named or "not valid JSON" in error["message"], (literal, error)
    assert null_tree.memory_kib(frontend) - before < 16 * 1024
    null_tree.settled()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 1_000_000}, "n"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"min_tokens": 5}, "min_tokens"),
        ({"min_tokens": 2**62, "max_tokens": 2**62 - 1}, "min_tokens"),
        ({"temperature": 2.0000001}, "temperature"),
        ({"top_p": 1.0000001}, "top_p"),
        ({"top_p": 0}, "top_p"),
        ({"min_p": -1e-300}, "min_p"),
        ({"top_k": 2**31}, "top_k"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"presence_penalty": 2.0000001}, "presence_penalty"),
        ({"frequency_penalty": -2.0000001}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [2**31]}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words[0]"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stop": "x" * 1025}, "stop"),
        ({"user": ["x"]}, "user"),
        ({"x" * 100_000: 1}, None),
    ],
)
def test_c04_numbers_that_do_not_fit(null_tree, fields, param):
    answer = null_tree.post(CHAT, {"model": null_tree.model, "max_tokens": 4} | ABOUT[CHAT] | fields)
    error = error_of(answer)
    assert answer.elapsed.total_seconds() < PATIENCE
    assert param is None or error["param"] == param
    assert len(answer.content) < 1000


def test_c04_a_large_value_that_is_ignored(null_tree):
    """`user` of a megabyte, metadata of a thousand keys: accepted, and nothing is kept of them."""
    frontend = null_tree.pid("frontend-0")
    fields = {"user": "x" * 2**20, "metadata": {str(key): "v" * 100 for key in range(1000)}}
    for _ in range(3):
        null_tree.chat("hi", max_tokens=1, **fields)
    before = null_tree.memory_kib(frontend)
    for _ in range(20):
        null_tree.chat("hi", max_tokens=1, **fields)
    assert null_tree.memory_kib(frontend) - before < 8 * 1024


def test_c04_the_sampler_at_its_limits(real_tree):
    """Whatever is accepted gives tokens, and as many as were asked for; a tiny temperature is greedy."""
    greedy = real_tree.text("hello", temperature=0, max_tokens=6, ignore_eos=True)
    combinations = [one for one in itertools.product(*SAMPLED.values()) if sum(map(eq, one, USUAL)) >= 2]
    for begin in range(0, len(combinations), 64):
        fields = [dict(zip(SAMPLED, values, strict=True)) for values in combinations[begin : begin + 64]]
        jobs = [lambda f=f: real_tree.complete("hello", max_tokens=6, ignore_eos=True, seed=7, **f) for f in fields]
        for one, body in zip(fields, in_parallel(jobs), strict=True):
            assert not isinstance(body, Exception), (one, body)
            assert body["usage"]["completion_tokens"] == 6
            if one["temperature"] < 1e-9 or one["top_k"] == 1 or one["top_p"] < 1e-9 or one["min_p"] == 1.0:
                assert body["choices"][0]["text"] == greedy, one
    assert real_tree.text("hello", temperature=0, max_tokens=6, ignore_eos=True) == greedy


@pytest.mark.parametrize("temperature", [0, 5e-324, 1.0, 2.0])
@pytest.mark.parametrize(
    "bias",
    [{"65": 100}, {"65": -100}, {str(token): -100 for token in range(258)}, {str(token): 100 for token in range(258)}],
)
def test_c04_biases_at_their_limits(real_tree, bias, temperature):
    body = real_tree.complete("hello", max_tokens=6, ignore_eos=True, seed=1, temperature=temperature, logit_bias=bias)
    assert body["usage"]["completion_tokens"] == 6


def test_c04_all_ends_are_banned(real_tree):
    """With every other token pushed down, what may not end yet still goes on."""
    bias = {str(token): -100 for token in range(257)} | {"257": 100}
    body = real_tree.complete("hello", max_tokens=6, min_tokens=6, logit_bias=bias, temperature=1.0)
    assert body["usage"]["completion_tokens"] == 6


# C19.


@pytest.fixture(params=["null", "real"])
def seeded(request):
    return request.getfixturevalue(f"{request.param}_tree")


def texts(tree, **fields):
    return [
        choice["text"]
        for choice in tree.complete("once upon a time", max_tokens=16, ignore_eos=True, **fields)["choices"]
    ]


def test_c19_the_same_seed_alone(seeded):
    assert texts(seeded, seed=11) == texts(seeded, seed=11)
    assert texts(seeded, seed=11) != texts(seeded, seed=12)
    assert texts(seeded) != texts(seeded)  # a seed that is not given is drawn


def test_c19_the_same_seed_while_others_run(seeded):
    """The CPU path computes a row alike in every batch, so that load changes nothing."""
    alone = texts(seeded, seed=11)
    others = [lambda i=i: texts(seeded, seed=i, n=1 + i % 3) for i in range(32)]
    ours = [lambda: texts(seeded, seed=11)] * 4
    results = in_parallel(others[:16] + ours + others[16:])
    assert results[16:20] == [alone] * 4
    assert results[:16] + results[20:] == [other() for other in others]


def test_c19_choices_of_one_seed_differ_and_stay(seeded):
    four = texts(seeded, seed=11, n=4)
    assert len(set(four)) == 4
    assert four == texts(seeded, seed=11, n=4)
    assert four[:2] == texts(seeded, seed=11, n=2)
    assert four[:1] == texts(seeded, seed=11)


@pytest.mark.parametrize("seed", [-1, 0, 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, -(2**63)])
def test_c19_seeds_at_their_limits(seeded, seed):
    assert texts(seeded, seed=seed) == texts(seeded, seed=seed)


def test_c19_every_bit_of_a_seed_counts(seeded):
    assert len({texts(seeded, seed=seed)[0] for seed in (1, 2, 2**32 + 1, 2**33 + 1, -1, 2**53, 2**53 + 1)}) == 7


def test_c19_greedy_needs_no_seed(seeded):
    assert len({texts(seeded, temperature=0, seed=seed)[0] for seed in (None, 0, 1, -5)}) == 1


@pytest.mark.parametrize("options", [("--dp", "2"), ("--executor", "broadcast"), ("--max-num-batched-tokens", "5")])
def test_c19_the_same_seed_on_another_tree(null_tree, start, options):
    other = start("--model-impl", "null", *options)
    assert texts(other, seed=11, n=4) == texts(null_tree, seed=11, n=4)
