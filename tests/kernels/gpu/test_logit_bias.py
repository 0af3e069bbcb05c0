"""Logit biases in Triton's interpreter."""

import pytest
import torch

from actorlm.kernels.gpu.logit_bias import Biases, add_logit_bias, reference

VOCAB = 500
SLOTS = torch.tensor([2, -1, 0, 1], dtype=torch.int32)


def biases_of(count=200):
    biases = Biases.none(3, 300)
    generator = torch.Generator().manual_seed(1)
    biases.ids_RN[:] = torch.stack([torch.randperm(VOCAB, generator=generator)[:300] for _ in range(3)])
    biases.values_RN[:] = torch.randn(3, 300, generator=generator) * 10
    biases.counts_R[:] = torch.tensor([count, 0, 3])
    return biases


def test_as_the_reference():
    logits = torch.randn(4, VOCAB)
    before, expected = logits.clone(), logits.clone()
    reference(expected, SLOTS, biases_of())
    add_logit_bias(logits, SLOTS, biases_of())
    assert torch.equal(logits, expected)
    assert (logits != before).sum(dim=-1).tolist() == [3, 0, 200, 0]


def test_an_id_that_is_there_twice():
    biases = biases_of()
    biases.ids_RN[2, :3] = 7
    biases.values_RN[2, :3] = torch.tensor([1.0, 2.0, 4.0])
    logits = torch.zeros(4, VOCAB)
    add_logit_bias(logits, SLOTS, biases)
    assert logits[0].nonzero()[:, 0].tolist() == [7]
    assert logits[0, 7] == 7.0


def test_what_is_out_stays_out():
    logits = torch.full((4, VOCAB), -torch.inf)
    add_logit_bias(logits, SLOTS, biases_of())
    assert logits.max() == -torch.inf


def test_what_the_launcher_refuses():
    biases = biases_of()
    with pytest.raises(AssertionError, match="float32"):
        add_logit_bias(torch.zeros(4, VOCAB).double(), SLOTS, biases)
    with pytest.raises(AssertionError, match="slots_S has 5 values"):
        add_logit_bias(torch.zeros(5, VOCAB), SLOTS, biases)
    with pytest.raises(AssertionError, match="each id has a bias"):
        add_logit_bias(torch.zeros(4, VOCAB), SLOTS, Biases(biases.counts_R, biases.ids_RN, biases.values_RN[:, 1:]))
