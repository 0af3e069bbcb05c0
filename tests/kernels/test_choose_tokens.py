"""choose_tokens on a vocabulary of real size: native against torch, row by row. (Definitions: tests/execution.)"""

import numpy as np
import pytest
import torch
from native_levels import on_all_levels

from actorlm.kernels.choose_tokens import Draws, choose_tokens

ROWS, VOCAB = 48, 49_157


def draws_of(seed, **columns):
    source = np.random.default_rng(seed)
    full = {
        "temperature": np.full(ROWS, 0.8),
        "min_p": np.zeros(ROWS),
        "top_p": np.ones(ROWS),
        "top_k": np.zeros(ROWS, np.int64),
        "words": source.integers(0, 2**64, ROWS, np.uint64),
    }
    return Draws(**{**full, **columns})


def logits_of(seed, scale=4.0):
    return torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


MIXED = {
    "temperature": np.resize([0.0, 0.01, 0.7, 1.0, 2.0], ROWS).astype(np.float64),
    "min_p": np.resize([0.0, 0.05, 0.0], ROWS).astype(np.float64),
    "top_p": np.resize([1.0, 0.9, 0.5, 0.999], ROWS).astype(np.float64),
    "top_k": np.resize([0, 1, 40, 5000, 10**6], ROWS).astype(np.int64),
}


@on_all_levels
@pytest.mark.parametrize("columns", [{}, MIXED, {"top_p": np.full(ROWS, 0.95)}, {"top_k": np.full(ROWS, 50)}])
@pytest.mark.parametrize("scale", [0.05, 4.0])
def test_as_torch_but_for_rounding(native, columns, scale):
    """A draw that falls within a rounding error of a boundary may give a neighbour: rarely."""
    logits, draws = logits_of(1, scale), draws_of(2, **columns)
    tokens, best = choose_tokens(logits, draws, native)
    expected, expected_best = choose_tokens(logits, draws)
    assert np.array_equal(best, expected_best)
    assert (tokens != expected).sum() <= 2
    assert np.array_equal(tokens[draws.temperature == 0], expected[draws.temperature == 0])


@on_all_levels
def test_a_row_gets_the_same_token_alone(native):
    logits, draws = logits_of(3), draws_of(4, **MIXED)
    tokens, _ = choose_tokens(logits, draws, native)
    for row in range(ROWS):
        alone, _ = choose_tokens(logits[row : row + 1], draws[np.array([row])], native)
        assert alone[0] == tokens[row]


@on_all_levels
@pytest.mark.parametrize("place", [0, 5, 1000, VOCAB - 1])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_none(native, place, bad):
    """Wherever they are: a highest logit that is not finite tells of them; -inf only rules a token out."""
    logits = logits_of(5)[:2].contiguous()
    logits[1, place] = bad
    draws = draws_of(6)[np.array([0, 1])]
    tokens, best = choose_tokens(logits, draws, native)
    assert np.isfinite(best).tolist() == [True, bad == -torch.inf]
    assert tokens[1] != place or bad != -torch.inf


@on_all_levels
def test_ruled_out_tokens_are_never_drawn(native):
    logits = torch.full((ROWS, 300), -torch.inf)
    logits[:, [7, 200, 299]] = torch.tensor([0.0, 1.0, -200.0])
    draws = draws_of(7, temperature=np.full(ROWS, 1.5), top_p=np.full(ROWS, 0.999999))
    tokens, _ = choose_tokens(logits, draws, native)
    assert set(tokens.tolist()) == {7, 200}


@on_all_levels
def test_the_first_of_equals(native):
    logits = torch.zeros(3, 100)
    logits[1, [40, 99]] = 2.0
    tokens, _ = choose_tokens(logits, draws_of(8, temperature=np.zeros(ROWS))[np.arange(3)], native)
    assert tokens.tolist() == [0, 40, 0]
