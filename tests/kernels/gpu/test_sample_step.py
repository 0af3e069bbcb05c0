"""A whole step of sampling in Triton's interpreter, beside the CPU's sampler."""

import numpy as np
import pytest
import torch

from actorlm.execution.sampler import Sampler
from actorlm.execution.scoring import _append
from actorlm.kernels.gpu import choose_tokens
from actorlm.kernels.gpu.bitmask import pack
from actorlm.kernels.gpu.sample_step import Slots, Step, sample_step
from actorlm.logprobs import Entries
from actorlm.sampling import SamplingParams

VOCAB, MOST_PROBABLE = 200, 4
EOS = (0, 150)


def params(**changes):
    return SamplingParams(**{"max_tokens": 9, "temperature": 0.0, **changes})


PARAMS = [
    params(repetition_penalty=1.5, frequency_penalty=0.5, logprobs=2),
    params(allowed_token_ids=tuple(range(3, 190, 4)), presence_penalty=1.0, logprobs=0),
    params(logit_bias=((17, 40.0), (3, -5.0)), repetition_penalty=3.0, logprob_token_ids=(17, 3)),
    params(min_tokens=2),
    params(temperature=1.3, top_k=1, seed=-3),
    params(temperature=0.9, top_k=30, top_p=0.9, min_p=0.01, seed=2**63 - 1, frequency_penalty=0.3),
    params(temperature=2.0, seed=12, logit_bias=((199, 3.0),), allowed_token_ids=(1, 7, 150, 199), logprobs=4),
]
ROWS = torch.tensor([5, -1, 0, 3, 6, 2, 4, 1], dtype=torch.int32)
GIVEN = (ROWS >= 0).nonzero()[:, 0]


def ids_of(slot):
    source = np.random.default_rng(slot)
    return source.integers(0, VOCAB, 30, np.int32), source.integers(0, VOCAB, 12, np.int32)


def on_cpu():
    sampler = Sampler(len(PARAMS), EOS)
    for slot, one in enumerate(PARAMS):
        sampler.put(slot, one, *ids_of(slot))
    return sampler


def on_gpu():
    slots = Slots.empty(len(PARAMS), VOCAB, biases=4, by_id=2)
    draws, biases, penalties, wanted = slots.draws, slots.biases, slots.penalties, slots.wanted
    for slot, one in enumerate(PARAMS):
        draws.temperature_R[slot], draws.min_p_R[slot], draws.top_p_R[slot] = one.temperature, one.min_p, one.top_p
        draws.top_k_R[slot], draws.seeds_R[slot] = one.top_k, one.seed
        biases.counts_R[slot] = len(one.logit_bias)
        for place, (token, bias) in enumerate(one.logit_bias):
            biases.ids_RN[slot, place], biases.values_RN[slot, place] = token, bias
        penalties.repetition_R[slot] = one.repetition_penalty
        penalties.frequency_R[slot] = one.frequency_penalty
        penalties.presence_R[slot] = one.presence_penalty
        penalties.put(slot, *map(torch.from_numpy, ids_of(slot)))
        wanted.counts_R[slot] = (one.logprobs or 0) if one.scores_output else -1
        wanted.ids_RM[slot, : len(one.logprob_token_ids)] = torch.tensor(one.logprob_token_ids, dtype=torch.int32)
    return slots


def mask(slots, step, generated):
    """As docs/sampling.md says restrictions become bitmasks."""
    for row, slot in enumerate(ROWS.tolist()):
        one = PARAMS[slot]
        out = torch.tensor(EOS if generated < one.min_tokens else (), dtype=torch.int64)
        if slot >= 0 and one.restricted:
            allowed = torch.zeros(VOCAB, dtype=torch.bool)
            allowed[torch.arange(VOCAB) if one.allowed_token_ids is None else torch.tensor(one.allowed_token_ids)] = (
                True
            )
            allowed[out] = False
            slots.allowed_KW[slot] = pack(allowed.nonzero()[:, 0], VOCAB)
            step.masks_S[row] = slot


def logits_of(number, dtype):
    logits = torch.randn(len(ROWS), VOCAB, generator=torch.Generator().manual_seed(number)) * 4
    logits[:, EOS] += 9.0
    return logits.to(dtype)


def expected_of(sampler, logits, positions, generated, draws):
    """The tokens of the rows that are no padding: after the CPU's changes, drawn as on a GPU."""
    slots, changed = ROWS[GIVEN].long().numpy(), logits[GIVEN].float()
    sampler._restrictions.apply(changed.numpy(), slots, np.full(len(slots), generated))
    sampler._add_bias(changed, slots)
    sampler._penalties.apply(changed.numpy(), slots)
    tokens, _ = choose_tokens.reference(changed, ROWS[GIVEN], positions[GIVEN], draws)
    sampler._penalties.append(slots, tokens.numpy())
    return tokens.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_as_on_a_cpu(dtype):
    """In the same buffers, as a CUDA graph has them. Each step depends on the tokens of those before."""
    sampler, slots, step = on_cpu(), on_gpu(), Step.empty(len(ROWS), VOCAB, MOST_PROBABLE, 2)
    step.slots_S.copy_(ROWS)
    for generated in range(4):
        logits = logits_of(generated // 2, dtype)  # twice the same, so that penalties make the difference
        before = logits.clone()
        step.positions_S.copy_(torch.arange(len(ROWS)) + generated)
        mask(slots, step, generated)
        sample_step(logits, slots, step)
        expected = expected_of(sampler, logits, step.positions_S, generated, slots.draws)
        assert step.tokens_S[GIVEN].tolist() == expected
        assert step.best_S.isfinite().all()
        assert torch.equal(logits, before)


def test_greedy_rows_are_those_of_the_sampler_itself():
    slots, step, logits = on_gpu(), Step.empty(len(ROWS), VOCAB, MOST_PROBABLE, 2), logits_of(1, torch.float32)
    step.slots_S.copy_(ROWS)
    mask(slots, step, 0)
    sample_step(logits, slots, step)
    zeros = np.zeros(len(GIVEN), np.int64)
    tokens = on_cpu().sample(logits[GIVEN].clone(), ROWS[GIVEN].long().numpy(), zeros, zeros)
    greedy = [place for place, slot in enumerate(ROWS[GIVEN].tolist()) if slot < 5]
    assert step.tokens_S[GIVEN][greedy].tolist() == tokens[greedy].tolist()
    assert tokens[greedy].tolist() != logits[GIVEN].argmax(dim=-1)[greedy].tolist()


def test_log_probabilities_are_about_the_logits_of_the_model():
    slots, step, logits = on_gpu(), Step.empty(len(ROWS), VOCAB, MOST_PROBABLE, 2), logits_of(1, torch.float32)
    step.slots_S.copy_(ROWS)
    mask(slots, step, 0)
    sample_step(logits, slots, step)
    told = step.candidates
    for row in GIVEN.tolist():
        one, given, entries = PARAMS[ROWS[row]], told.ids_SC[row] >= 0, Entries()
        assert given.any() == one.scores_output
        if one.scores_output:
            _append(entries, logits[row].numpy(), int(step.tokens_S[row]), one.logprobs or 0, one.logprob_token_ids)
            assert told.ids_SC[row][given].tolist() == entries.ids.tolist()
            assert told.ranks_S[row] == entries.ranks[0]
            torch.testing.assert_close(told.values_SC[row][given], torch.tensor(entries.values), rtol=0, atol=5e-6)
    assert told.ids_SC[ROWS < 0].unique().tolist() == [-1]


def test_nothing_but_padding():
    slots, step = on_gpu(), Step.empty(3, VOCAB, MOST_PROBABLE, 2)
    counts = slots.penalties.counts_RV.clone()
    sample_step(torch.full((3, VOCAB), torch.nan), slots, step)
    assert step.tokens_S.tolist() == [0, 0, 0]
    assert step.best_S.isfinite().all()
    assert torch.equal(slots.penalties.counts_RV, counts)


def test_what_is_refused():
    with pytest.raises(AssertionError, match="logits for each row"):
        sample_step(torch.zeros(3, VOCAB - 1), on_gpu(), Step.empty(3, VOCAB, MOST_PROBABLE, 2))
