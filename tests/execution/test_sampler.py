"""Sampler against the definition at the head of its file, written naively."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actorlm.errors import ModelError
from actorlm.execution.randomness import MASK, word
from actorlm.execution.sampler import NO_IDS, Sampler
from actorlm.kernels.choose_tokens import _row_sums
from actorlm.kernels.native import Native, choose_level
from actorlm.sampling import SamplingParams

EOS = (0,)
KERNELS = {"native": None}


@pytest.fixture(autouse=True, scope="module", params=["torch", "native"])
def kernels(request):
    """Everything here holds for both."""
    if request.param == "native":
        if (level := choose_level("auto")) is None:
            pytest.skip("there are no compiled kernels")
        KERNELS["native"] = Native(level, threads=2)
    yield request.param
    KERNELS["native"] = None


def sample(logits, params, positions=None, generated=None, prompt_ids=NO_IDS, generated_ids=NO_IDS):
    """Tokens for rows of logits, each with its own parameters; all have the same ids."""
    rows = len(params)
    sampler = Sampler(rows, EOS, KERNELS["native"])
    for slot, one in enumerate(params):
        sampler.put(slot, one, np.array(prompt_ids, np.int32), np.array(generated_ids, np.int32))
    slots = np.arange(rows)
    positions = np.full(rows, 7) if positions is None else np.array(positions)
    generated = np.zeros(rows, np.int64) if generated is None else np.array(generated)
    return sampler.sample(torch.as_tensor(logits, dtype=torch.float32).clone(), slots, positions, generated).tolist()


def random_logits(rows, vocab=40, seed=0, scale=3.0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def params(**changes):
    return SamplingParams(**{"max_tokens": 10, **changes})


def distribution(logits, p):
    """The probabilities that the file's head defines, one row, without logit_bias and min_tokens."""
    logits = [float(x) for x in logits]
    weights = [math.exp((x - max(logits)) / p.temperature) for x in logits]
    keep = {i for i, w in enumerate(weights) if w >= p.min_p}
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    if p.top_k > 0:
        floor = logits[order[min(p.top_k, len(logits)) - 1]]
        keep &= {i for i, x in enumerate(logits) if x >= floor}
    if p.top_p < 1.0:
        total, before, floor = sum(weights[i] for i in keep), 0.0, logits[order[0]]
        for i in order:
            if i in keep and before < p.top_p * total:
                before, floor = before + weights[i], logits[i]
        keep &= {i for i, x in enumerate(logits) if x >= floor}
    total = sum(weights[i] for i in keep)
    return [weights[i] / total if i in keep else 0.0 for i in range(len(logits))]


def adjusted(logits, p, prompt, output):
    """The logits of one row after restrictions, bias and penalties, in the order that the files' heads tell."""
    row = logits.numpy().copy()
    for token in range(len(row)):
        word_ends = any(
            list(word[:-1]) == output[len(output) - len(word) + 1 :] and word[-1] == token
            for word in p.bad_words
            if len(word) <= len(output) + 1
        )
        not_allowed = p.allowed_token_ids is not None and token not in p.allowed_token_ids
        if word_ends or not_allowed or (len(output) < p.min_tokens and token in (*EOS, *p.stop_token_ids)):
            row[token] = -np.inf
    for token, bias in p.logit_bias:
        row[token] += np.float32(bias)
    for token in {*prompt, *output}:
        penalty = np.float32(p.repetition_penalty)
        row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
        row[token] -= np.float32(p.frequency_penalty) * output.count(token)
        row[token] -= np.float32(p.presence_penalty) * (token in output)
    return row


def inverse(probabilities, u):
    cumulative = 0.0
    for token, probability in enumerate(probabilities):
        cumulative += probability
        if cumulative > u and probability > 0:
            return token
    raise AssertionError("u is below 1")


FILTERS = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 2.0},
    "top_k": {"top_k": 5},
    "top_k 1": {"top_k": 1},
    "top_k above the vocabulary": {"top_k": 1000},
    "top_p": {"top_p": 0.8},
    "tiny top_p": {"top_p": 1e-9},
    "min_p": {"min_p": 0.1},
    "all": {"temperature": 1.3, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
}


@pytest.mark.parametrize("changes", FILTERS.values(), ids=FILTERS.keys())
def test_each_filter_is_the_definition(changes):
    rows = 60
    logits = random_logits(rows)
    wanted = [params(seed=seed * 977 - 30, **changes) for seed in range(rows)]
    positions = [seed * 3 for seed in range(rows)]
    expected = [
        inverse(distribution(row, p), (word(p.seed & MASK, position) >> 11) * 2.0**-53)
        for row, p, position in zip(logits, wanted, positions, strict=True)
    ]
    assert sample(logits, wanted, positions) == expected


def test_a_flat_top_p_ranks_the_whole_vocabulary():
    logits = random_logits(2, vocab=3000, scale=0.01)
    p = params(top_p=0.9, seed=3)
    kept = np.array(distribution(logits[0], p)) > 0
    assert 2000 < kept.sum() < 2900
    tokens = {sample(logits[:1], [p], [position])[0] for position in range(300)}
    assert all(kept[token] for token in tokens)
    assert len(tokens) > 200


def test_equals_of_the_kth_stay():
    tokens = {sample([[1.0, 2.0, 2.0, 2.0, 0.0]], [params(top_k=2)], [position])[0] for position in range(200)}
    assert tokens == {1, 2, 3}


@pytest.mark.parametrize("changes", [{}, {"temperature": 0.5, "top_p": 0.9}, {"top_k": 8, "min_p": 0.05}])
def test_frequencies_are_the_distribution(changes):
    rows = 20_000
    logits = random_logits(1, vocab=20, seed=5, scale=1.0)
    p = params(seed=11, **changes)
    counts = np.bincount(sample(logits.repeat(rows, 1), [p] * rows, range(rows)), minlength=20)
    expected = np.array(distribution(logits[0], p)) * rows
    assert (counts[expected == 0] == 0).all()
    assert fits(counts, expected)


def fits(counts, expected):
    """The chi-square test, far in its tail. Tokens of probability 0 are left out."""
    used = expected > 0
    statistic = ((counts - expected)[used] ** 2 / expected[used]).sum()
    degrees = used.sum() - 1
    return statistic < degrees + 4 * math.sqrt(2 * degrees) + 8


ADJUSTMENTS = {
    "repetition": {"repetition_penalty": 1.7},
    "repetition that repeats": {"repetition_penalty": 0.4},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.7},
    "allowed": {"allowed_token_ids": (1, 4, 5, 9, 13, 4)},
    "bad words": {"bad_words": ((3,), (4, 5), (9, 4, 6), (4, 9, 7), (1, 9, 4, 8), (5, 10))},
    "all": {
        "repetition_penalty": 1.3, "presence_penalty": -0.5, "frequency_penalty": 0.6, "temperature": 0.8,
        "logit_bias": ((4, 2.0), (7, -1.0), (0, 50.0)), "bad_words": ((9, 4, 6), (2,)), "min_tokens": 9, "top_k": 14,
        "top_p": 0.95, "min_p": 0.005, "allowed_token_ids": tuple(range(20)), "stop_token_ids": (11,),
    },
}  # fmt: skip
PROMPT = [4, 2, 2, 17]
OUTPUT = [4, 4, 1, 4, 9, 12, 9, 4]


@pytest.mark.parametrize("changes", ADJUSTMENTS.values(), ids=ADJUSTMENTS.keys())
def test_frequencies_are_the_distribution_after_penalties_and_restrictions(changes):
    rows = 20_000
    logits = random_logits(1, vocab=20, seed=6, scale=1.0)
    p = params(seed=12, **changes)
    generated = [len(OUTPUT)] * rows
    tokens = sample(logits.repeat(rows, 1), [p] * rows, range(rows), generated, PROMPT, OUTPUT)
    counts = np.bincount(tokens, minlength=20)
    expected = np.array(distribution(adjusted(logits[0], p, PROMPT, OUTPUT), p)) * rows
    plain = np.array(distribution(logits[0], params())) * rows
    assert (counts[expected == 0] == 0).all()
    assert fits(counts, expected)
    assert not fits(counts, plain), "the parameter changes nothing"


def test_a_sequence_is_that_of_its_definition():
    """Counts and ends of words follow what was sampled, step by step, in some rows and not in others."""
    changes = [*ADJUSTMENTS.values(), {}, {"temperature": 0.0, "frequency_penalty": 0.9}]
    wanted = [params(seed=seed, **{"temperature": 1.2, **change}) for seed, change in enumerate(changes)]
    sampler, outputs = Sampler(len(wanted), EOS, KERNELS["native"]), [list(OUTPUT) for _ in wanted]
    for slot, p in enumerate(wanted):
        sampler.put(slot, p, np.array(PROMPT, np.int32), np.array(OUTPUT, np.int32))
    for step in range(40):
        logits = random_logits(len(wanted), vocab=20, seed=step)
        slots = np.array([slot for slot in range(len(wanted)) if (slot + step) % 3])
        lengths = np.array([len(outputs[slot]) for slot in slots])
        tokens = sampler.sample(logits[slots].clone(), slots, lengths + 4, lengths)
        for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
            p, output = wanted[slot], outputs[slot]
            row = adjusted(logits[slot], p, PROMPT, output)
            u = (word(p.seed & MASK, len(output) + 4) >> 11) * 2.0**-53
            assert token == (inverse(distribution(row, p), u) if p.temperature else int(row.argmax()))
            output.append(token)


def test_greedy_is_argmax_of_float32_and_the_lowest_of_equals():
    logits = random_logits(50, vocab=500)
    logits[3] = 1.5
    assert sample(logits, [params(temperature=0.0, seed=i) for i in range(50)]) == logits.argmax(-1).tolist()
    assert sample(logits[3:4], [params(temperature=0.0)]) == [0]


def test_greedy_rows_draw_nothing(monkeypatch):
    monkeypatch.setattr("actorlm.kernels.choose_tokens._draw", None)
    logits = random_logits(4)
    assert sample(logits, [params(temperature=0.0)] * 4) == logits.argmax(-1).tolist()


@settings(deadline=None, max_examples=30)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31), st.integers(0, 3), st.booleans())
def test_a_row_depends_on_nothing_else_in_the_batch(seed, position, others, greedy):
    logits = random_logits(4, vocab=400, seed=others)
    one = params(seed=seed, top_p=0.9)
    company = [params(temperature=0.0 if greedy else 1.9, top_k=300, seed=i, min_p=0.1) for i in range(others)]
    alone = sample(logits[3:], [one], [position])
    together = sample(logits[3 - others :], [*company, one], [*range(others), position])
    assert together[-1] == alone[0]


def test_the_sum_of_a_row_has_the_same_bits_in_any_batch():
    weights = torch.rand(8, 50_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together, alone = _row_sums(weights), torch.cat([_row_sums(weights[row : row + 1]) for row in range(8)])
        assert torch.equal(together, alone)
    finally:
        torch.set_num_threads(threads)


def test_logit_bias_is_added_before_everything():
    logits = [[0.0, 1.0, 2.0, 3.0]] * 3
    bias = ((1, 2.5), (2, -100.0), (1, 1.0))
    wanted = [params(temperature=0.0, logit_bias=bias), params(temperature=0.0), params(top_k=1, logit_bias=bias)]
    assert sample(logits, wanted) == [1, 3, 1]


@pytest.mark.parametrize(("generated", "token"), [(0, 1), (2, 1), (3, 0)])
def test_min_tokens_bans_what_ends_a_generation(generated, token):
    logits = [[9.0, 5.0, 7.0, 8.0]]
    p = params(temperature=0.0, min_tokens=3, stop_token_ids=(2, 3))
    assert sample(logits, [p], generated=[generated]) == [token]


def test_a_slot_forgets_its_last_request():
    sampler = Sampler(1, EOS)
    old = {"bad_words": ((1,),), "allowed_token_ids": (2, 3), "repetition_penalty": 9.0, "presence_penalty": 2.0}
    ids = np.array([1], np.int32)
    sampler.put(0, params(min_tokens=5, stop_token_ids=(1, 2), logit_bias=((3, 50.0),), top_k=1, **old), ids, ids)
    sampler.put(0, params(temperature=0.0), ids, ids)
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
    assert sampler.sample(logits, np.array([0]), np.array([1]), np.array([0])).tolist() == [1]


def test_the_last_word_gives_the_last_token(monkeypatch):
    monkeypatch.setattr("actorlm.execution.sampler.word", lambda seeds, positions: np.full(len(seeds), MASK, np.uint64))
    assert sample([[0.0, 0.0, 0.0, -900.0]], [params()]) == [2]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_an_error(bad):
    with pytest.raises(ModelError, match=r"rows \[1\]"):
        sample([[0.0, 1.0], [bad, 1.0]], [params(), params(temperature=0.0)])


@pytest.mark.parametrize("temperature", [5e-324, 1e-308, 1e-300, 1e-30])
@pytest.mark.parametrize("changes", [{}, {"top_p": 5e-324}, {"top_k": 3}, {"min_p": 1.0}])
def test_c04_the_smallest_temperatures_are_greedy(temperature, changes):
    """A logit divided by such a temperature is infinite, and the difference of two is no number."""
    logits = random_logits(4, scale=100.0)
    assert sample(logits, [params(temperature=temperature, **changes)] * 4) == logits.argmax(dim=-1).tolist()
