"""choose_tokens in Triton's interpreter: against its reference, the CPU's choice, and the probabilities."""

import numpy as np
import pytest
import torch

from actorlm.execution import randomness
from actorlm.kernels import choose_tokens as cpu
from actorlm.kernels.gpu import choose_tokens as gpu
from actorlm.kernels.gpu import gumbel
from actorlm.kernels.gpu.choose_tokens import Draws, choose_tokens, reference

VOCAB = 1000


def draws_of(count, temperature=1.0, min_p=0.0, top_p=1.0, top_k=0, seed=7):
    """One parameter for all slots, or one for each in turn."""
    columns = (temperature, min_p, top_p, top_k, seed)
    types = (torch.float32, torch.float32, torch.float32, torch.int32, torch.int64)
    return Draws(*(torch.from_numpy(np.resize(c, count)).to(t) for c, t in zip(columns, types, strict=True)))


def logits_of(rows, scale=4.0, size=VOCAB):
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(3)) * scale


def chosen(logits, draws, slots=None, positions=None, block=256):
    rows = len(logits)
    slots = torch.arange(rows, dtype=torch.int32) if slots is None else slots
    positions = torch.arange(rows) if positions is None else positions
    tokens, best = torch.full((rows,), -1, dtype=torch.int32), torch.full((rows,), -1.0)
    choose_tokens(logits, slots, positions, draws, tokens, best, block=block)
    return tokens, best


MIXED = {
    "temperature": [0.0, 0.01, 0.7, 1.0, 2.0],
    "min_p": [0.0, 0.05, 0.0],
    "top_p": [1.0, 0.9, 0.5, 0.999],
    "top_k": [0, 1, 40, 900, 10**6],
    "seed": [0, 1, -1, 2**63 - 1, -(2**63)],
}


def test_words_are_those_of_the_cpu():
    for word in (0, 1, 2**63, 2**64 - 1, 123_456_789_012_345):
        assert int(gumbel.mix(torch.tensor(gumbel._signed(word)))) == gumbel._signed(randomness.mix(word))
    state = randomness.word(2**64 - 5, 17)
    first = gumbel.reference_noise(-5, 17, 3)
    x = np.array([randomness.mix(state ^ token) for token in range(3)], np.float64) / 2.0**64
    assert np.allclose(first.numpy(), -np.log(-np.log1p(-x)), rtol=1e-12)


@pytest.mark.parametrize("scale", [0.05, 4.0])
@pytest.mark.parametrize("columns", [{}, MIXED, {"top_p": 0.95}, {"top_k": 50}, {"min_p": 0.3}])
def test_as_the_reference(columns, scale):
    """Equal logits are among them."""
    logits, draws = logits_of(10, scale), draws_of(10, **columns)
    logits[:, ::9] = logits[:, 1:2]
    slots, positions = torch.arange(10, dtype=torch.int32), torch.arange(10)
    expected, expected_best = reference(logits, slots, positions, draws)
    tokens, best = chosen(logits, draws)
    assert tokens.tolist() == expected.tolist()
    assert best.tolist() == expected_best.tolist()
    assert len(set(tokens.tolist())) > 3


def test_greedy_as_the_cpu():
    """The first of equals, of zeros of both signs too."""
    logits = logits_of(6)
    logits[1, [300, 700, 999]] = 50.0
    logits[2] = 0.0
    logits[3] = -1.0
    logits[3, 600], logits[3, 500] = 0.0, -0.0
    logits[4, :] = -torch.inf
    logits[4, 999] = -3.0
    expected, expected_best = cpu.reference(logits, cpu.Draws.greedy(6))
    tokens, best = chosen(logits, Draws.greedy(6))
    assert tokens.tolist() == expected.tolist()
    assert tokens[1:5].tolist() == [300, 0, 500, 999]
    assert best.tolist() == expected_best.tolist()


@pytest.mark.parametrize("temperature", [1e-45, 1e-30, 1e-5])
def test_next_to_no_temperature(temperature):
    logits = logits_of(2)
    assert chosen(logits, draws_of(2, temperature=temperature))[0].tolist() == logits.argmax(dim=-1).tolist()


LADDER = [4.0, -9.0, 3.0, 3.0, 2.0, 2.0, 2.0, 1.0, -torch.inf, 0.0]
"""A few equal logits."""


@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 2, 3}),
        ({"top_k": 3}, {0, 2, 3}),
        ({"top_k": 4}, {0, 2, 3, 4, 5, 6}),
        ({"top_k": 7}, {0, 2, 3, 4, 5, 6, 7}),
        ({"top_p": 0.01}, {0}),
        ({"top_p": 0.6}, {0, 2, 3}),
        ({"top_p": 0.8}, {0, 2, 3, 4, 5, 6}),
        ({"top_p": 0.75, "top_k": 3}, {0, 2, 3}),
        ({"top_p": 0.57, "top_k": 3}, {0}),
        ({"min_p": 0.97}, {0}),
        ({"min_p": 0.9}, {0, 2, 3}),
        ({"min_p": 0.8, "top_p": 0.9}, {0, 2, 3, 4, 5, 6}),
        ({"min_p": 0.8, "top_p": 0.18}, {0}),
        ({}, {0, 2, 3, 4, 5, 6, 7, 9}),
    ],
)
def test_which_tokens_can_come(columns, kept):
    """All that may and no others, at temperatures so high that each is soon drawn; the CPU says the same of them."""
    temperature = 1.0 if "top_p" in columns and "min_p" not in columns else 10.0
    rows = 32
    logits = torch.tensor(LADDER).repeat(rows, 1)
    draws = draws_of(rows, temperature=temperature, **columns)
    weights = cpu.weigh(logits[:1], gpu._cpu_draws(draws, 0))
    assert set(weights[0].nonzero()[:, 0].tolist()) - {1} == kept
    tokens, _ = chosen(logits, draws, block=16)
    assert set(tokens.tolist()) - {1} == kept
    assert 1 not in tokens or not columns


def chi_square(counts, weights):
    expected = weights / weights.sum() * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


PROBABILITIES = torch.tensor([0.3, 0.05, 0.25, 0.02, 0.2, 0.18])
CRITICAL = 20.5
"""Of five degrees of freedom: one in a thousand draws is above."""


def test_probabilities_of_the_kernel():
    counts = torch.zeros(6)
    for begin in range(0, 400, 50):
        positions = torch.arange(begin, begin + 50)
        tokens, _ = chosen(PROBABILITIES.log().repeat(50, 1), draws_of(50), positions=positions, block=16)
        counts += torch.bincount(tokens, minlength=6)
    assert chi_square(counts, PROBABILITIES) < CRITICAL
    assert chi_square(counts, torch.ones(6)) > 2 * CRITICAL


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("varied", ["seed", "position"])
def test_probabilities_of_the_noise(temperature, varied):
    """Over seeds and over positions."""
    scaled = PROBABILITIES.double().log() / temperature
    places = [(n, 5) if varied == "seed" else (5, n) for n in range(5000)]
    tokens = torch.stack([scaled + gumbel.reference_noise(*place, 6) for place in places]).argmax(dim=-1)
    assert chi_square(torch.bincount(tokens, minlength=6), scaled.exp()) < CRITICAL


def test_a_row_gets_the_same_token_anywhere():
    """Alone, elsewhere in a batch, with padding beside it, and in a buffer with wider rows."""
    logits, draws = logits_of(5), draws_of(5, **MIXED)
    slots, positions = torch.tensor([3, 1, 2, 4, 0], dtype=torch.int32), torch.arange(100, 105)
    tokens, _ = chosen(logits, draws, slots, positions)
    for row in range(5):
        alone, _ = chosen(logits[row : row + 1], draws, slots[row : row + 1], positions[row : row + 1])
        assert alone[0] == tokens[row]
    wide = torch.full((7, VOCAB + 24), 1e9)
    wide[[6, 0, 3, 2, 5], :VOCAB] = logits
    moved = torch.full((7,), -1, dtype=torch.int32)
    moved[[6, 0, 3, 2, 5]] = slots
    places = torch.zeros(7, dtype=torch.int64)
    places[[6, 0, 3, 2, 5]] = positions
    again, best = chosen(wide[:, :VOCAB], draws, moved, places)
    assert again[[6, 0, 3, 2, 5]].tolist() == tokens.tolist()
    assert again[[1, 4]].tolist() == [0, 0]
    assert best[[1, 4]].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("place", [0, 300, VOCAB - 1])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_numbers_that_are_none(place, bad):
    logits = logits_of(2)
    logits[1, place] = bad
    tokens, best = chosen(logits, draws_of(2, top_p=0.5, top_k=3))
    assert best.isfinite().tolist() == [True, False]
    assert 0 <= tokens[1] < VOCAB


def test_no_number_at_all():
    tokens, best = chosen(torch.full((1, VOCAB), -torch.inf), draws_of(1))
    assert best.tolist() == [-torch.inf]
    assert 0 <= tokens[0] < VOCAB


def test_what_the_launcher_refuses():
    logits, draws = logits_of(2), draws_of(2)
    with pytest.raises(AssertionError, match="float32"):
        chosen(logits.double(), draws)
    with pytest.raises(AssertionError, match="dense"):
        chosen(logits[:, ::2], draws)
    with pytest.raises(AssertionError, match="slots_S is torch.int32"):
        chosen(logits, draws, slots=torch.arange(2))
    with pytest.raises(AssertionError, match="positions_S has 2 values"):
        chosen(logits, draws, positions=torch.arange(3))
