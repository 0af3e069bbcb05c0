"""Penalties in Triton's interpreter: against the reference, and against what the CPU's sampler does."""

import numpy as np
import pytest
import torch

from actorlm.execution.penalties import Penalties as CpuPenalties
from actorlm.kernels.gpu.penalties import Penalties, append_tokens, apply_penalties, reference
from actorlm.sampling import SamplingParams

VOCAB = 300
PARAMS = [
    SamplingParams(max_tokens=1, repetition_penalty=1.3),
    SamplingParams(max_tokens=1, presence_penalty=0.7),
    SamplingParams(max_tokens=1, frequency_penalty=-0.4),
    SamplingParams(max_tokens=1),
    SamplingParams(max_tokens=1, repetition_penalty=0.8, presence_penalty=-1.5, frequency_penalty=0.9),
]
SLOTS = torch.tensor([4, 0, -1, 3, 2, 1], dtype=torch.int32)


def ids_of(slot):
    """Prompt and output of a slot, with some tokens in both and some there often."""
    source = np.random.default_rng(slot)
    return source.integers(0, VOCAB, 40, np.int32), source.integers(0, 60, 30, np.int32)


def penalties_of():
    """The same for both devices."""
    here, there = CpuPenalties(5), Penalties.none(5, VOCAB)
    for slot, params in enumerate(PARAMS):
        prompt, generated = ids_of(slot)
        here.put(slot, params, prompt, generated)
        there.put(slot, torch.from_numpy(prompt), torch.from_numpy(generated))
        there.repetition_R[slot] = params.repetition_penalty
        there.frequency_R[slot] = params.frequency_penalty
        there.presence_R[slot] = params.presence_penalty
    return here, there


def logits_of(rows=6):
    logits = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(2)) * 5
    logits[:, 20:30] = -torch.inf
    return logits


def by_cpu(logits, here):
    """The logits of the rows that are no padding."""
    given = (SLOTS >= 0).nonzero()[:, 0]
    changed = logits[given].numpy().copy()
    here.apply(changed, SLOTS[given].long().numpy())
    expected = logits.clone()
    expected[given] = torch.from_numpy(changed)
    return expected


def test_as_the_cpu_and_the_reference():
    here, there = penalties_of()
    logits = logits_of()
    before, expected, by_reference = logits.clone(), by_cpu(logits, here), logits.clone()
    reference(by_reference, SLOTS, there)
    apply_penalties(logits, SLOTS, there, block=128)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(logits, by_reference, rtol=1e-6, atol=1e-6)
    changed = (logits != before).sum(dim=-1)
    assert changed[[2, 3]].tolist() == [0, 0]
    assert (changed[[0, 1, 4, 5]] > 15).all()


def test_tokens_are_counted():
    """Of slots with penalties: twice the same token, and one that the sequence had not."""
    here, there = penalties_of()
    for tokens in ([5, 299, 7, 100, 250, 11], [5, 298, 7, 100, 250, 12]):
        chosen = torch.tensor(tokens, dtype=torch.int32)
        given = (SLOTS >= 0).nonzero()[:, 0]
        here.append(SLOTS[given].long().numpy(), chosen[given].numpy())
        append_tokens(SLOTS, chosen, there)
    assert there.counts_RV[4, 5] == np.count_nonzero(ids_of(4)[1] == 5) + 2
    assert there.counts_RV[3].sum() == 30
    assert there.counts_RV.sum() == 5 * 30 + 4 * 2
    logits = logits_of()
    expected = by_cpu(logits, here)
    apply_penalties(logits, SLOTS, there, block=512)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)


def test_more_rows_than_one_program_counts():
    there = Penalties.none(200, VOCAB)
    there.presence_R.fill_(1.0)
    slots = torch.arange(200, dtype=torch.int32).flip(0)
    append_tokens(slots, torch.arange(200, dtype=torch.int32), there)
    assert torch.equal(there.counts_RV, torch.eye(200, VOCAB, dtype=torch.int32).flip(0))


def test_rows_of_a_wider_buffer():
    _, there = penalties_of()
    logits = logits_of()
    buffer = torch.nn.functional.pad(logits, (0, 12), value=3.0)
    apply_penalties(logits, SLOTS, there, block=128)
    apply_penalties(buffer[:, :VOCAB], SLOTS, there, block=128)
    assert torch.equal(buffer[:, :VOCAB], logits)
    assert (buffer[:, VOCAB:] == 3.0).all()


def test_what_the_launcher_refuses():
    there = Penalties.none(5, VOCAB)
    with pytest.raises(AssertionError, match="float32"):
        apply_penalties(logits_of().bfloat16(), SLOTS, there)
    with pytest.raises(AssertionError, match="a count for each token"):
        apply_penalties(logits_of()[:, :-1], SLOTS, there)
    with pytest.raises(AssertionError, match="tokens_S is torch.int32"):
        append_tokens(SLOTS, SLOTS.long(), there)
