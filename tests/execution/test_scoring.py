"""Log-probabilities against transformers' log_softmax; when they are given, and that they depend on nothing else."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from driving import Driver, make_runner, random_prompts

from actorlm.execution.null import NullRunner
from actorlm.execution.scoring import Scoring
from actorlm.logprobs import unpack
from actorlm.sampling import SamplingParams
from actorlm.wire import read_int32

TOLERANCE = 1e-4
PLAIN = SamplingParams(max_tokens=1000, seed=3)


def params(**changes):
    return msgspec.structs.replace(PLAIN, **changes)


def reference(model, ids):
    """Log-probabilities [len(ids), V] of what comes after each id."""
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].log_softmax(-1)


def step(driver, rows):
    """The scores of each slot of the step, None where it has none; the tokens are appended."""
    plan = driver.plan(rows)
    done = driver.runner.execute(plan)
    sampled = [rows[i][0] for i in read_int32(plan.sampled)]
    for slot, token in zip(sampled, read_int32(done.tokens), strict=True):
        driver.ids[slot].append(token)
    if done.logprobs is None:
        return {}
    done.logprobs.check(len(rows))
    return {slot: scores for (slot, _), scores in zip(rows, unpack(done.logprobs), strict=True) if scores is not None}


def run(driver, slots, count, chunk=1000):
    """`count` tokens for each slot; (prompt entries, output entries) of each, joined."""
    joined = {slot: ([], []) for slot in slots}
    goal = {slot: len(driver.ids[slot]) + count for slot in slots}
    while busy := [slot for slot in slots if len(driver.ids[slot]) < goal[slot]]:
        for slot, scores in step(driver, [(slot, min(chunk, driver.left(slot))) for slot in busy]).items():
            prompt, output = joined[slot]
            if len(scores.prompt):
                assert scores.start == len(prompt) + 1
            prompt += scores.prompt
            output += scores.output
    return joined


def check(entry, token, row, count, token_ids=()):
    """One entry against the reference's log-probabilities [V]."""
    ids = [token, *[one for one, _ in entry.others]]
    values = [entry.logprob, *[value for _, value in entry.others]]
    assert entry.token == token
    torch.testing.assert_close(torch.tensor(values), row[ids], atol=TOLERANCE, rtol=0)
    assert values[1 : 1 + count] == sorted(values[1 : 1 + count], reverse=True)
    torch.testing.assert_close(torch.tensor(values[1 : 1 + count]), row.topk(count).values, atol=TOLERANCE, rtol=0)
    assert ids[1 + count :] == list(token_ids)
    close = int(((row - row[token]).abs() < 2 * TOLERANCE).sum())
    assert abs(entry.rank - int((row >= row[token]).sum())) < close


@pytest.mark.parametrize("chunk", [1000, 16, 7, 1])
def test_prompt_and_output_are_log_softmax(tiny, chunk):
    model, description = tiny
    driver = Driver(make_runner(description), 128, shuffle=chunk)
    prompts = random_prompts(chunk, 40, 1, 2, 17, 30)
    asked = [
        params(prompt_logprobs=3, logprobs=5),
        params(prompt_logprobs=0, logprobs=0),
        params(prompt_logprobs=2, logprob_token_ids=(9, 3), temperature=0.0),
        params(prompt_logprobs=1),
        params(logprobs=2, logprob_token_ids=(8,)),
    ]
    for slot, (prompt, one) in enumerate(zip(prompts, asked, strict=True)):
        driver.add(slot, prompt, one)
    joined = run(driver, range(5), 6, chunk)
    for slot, (prompt, one) in enumerate(zip(prompts, asked, strict=True)):
        rows, (scored, output) = reference(model, driver.ids[slot]), joined[slot]
        assert len(scored) == (0 if one.prompt_logprobs is None else len(prompt) - 1)
        assert len(output) == (6 if one.scores_output else 0)
        for position, entry in enumerate(scored, 1):
            check(entry, prompt[position], rows[position - 1], one.prompt_logprobs)
        for position, entry in enumerate(output, len(prompt)):
            token = driver.ids[slot][position]
            check(entry, token, rows[position - 1], one.logprobs or 0, one.logprob_token_ids)


def test_they_are_of_the_model_and_not_of_what_sampling_makes_of_it(tiny_grouped):
    model, description = tiny_grouped
    driver = Driver(make_runner(description), 128)
    (prompt,) = random_prompts(1, 12)
    changed = params(
        logprobs=4, temperature=0.3, top_k=2, repetition_penalty=3.0, presence_penalty=2.0, logit_bias=((9, 90.0),),
        bad_words=((9,),), allowed_token_ids=(9, 10, 11), min_tokens=50,
    )  # fmt: skip
    driver.add(0, prompt, changed)
    (_, output) = run(driver, [0], 8)[0]
    rows = reference(model, driver.ids[0])
    for position, entry in enumerate(output, len(prompt)):
        check(entry, driver.ids[0][position], rows[position - 1], 4)
    assert {entry.token for entry in output} <= {10, 11}


def test_equal_logits_have_the_same_bits_in_a_batch():
    """A vocabulary of this size is summed by several threads, if there are any."""
    logits = torch.randn(4, 50_000, generator=torch.Generator().manual_seed(1)) * 3

    def values(rows):
        scoring = Scoring(4)
        for slot in range(4):
            scoring.put(slot, params(logprobs=20), 5, 0)
        slots = np.array(rows)
        batch = SimpleNamespace(slots=slots, sampled_slots=slots, sampled_rows=np.arange(len(rows)))
        done = scoring.score(batch, scoring.raw(logits[rows], slots), slots.astype(np.int32), [], logits[:0])
        return [list(scores.output) for scores in unpack(done)]

    assert values([0, 1, 2, 3]) == [values([row])[0] for row in range(4)]


RUNNERS = ["null", "torch"]


@pytest.fixture(params=RUNNERS)
def driver(request, tiny_grouped):
    sizes = {"num_blocks": 128, "max_num_seqs": 16, "max_model_len": 512, "max_num_batched_tokens": 2048}
    null = request.param == "null"
    return Driver(NullRunner(tiny_grouped[1], **sizes) if null else make_runner(tiny_grouped[1]), 128)


def test_a_step_in_which_nobody_asks_has_none(driver):
    for slot, prompt in enumerate(random_prompts(2, 5, 9)):
        driver.add(slot, prompt, PLAIN)
    assert driver.runner.execute(driver.plan([(0, 5), (1, 9)])).logprobs is None


def test_rows_that_do_not_ask_have_none(driver):
    first, second = random_prompts(2, 5, 9)
    driver.add(0, first, PLAIN)
    driver.add(1, second, params(logprobs=0))
    assert step(driver, [(0, 5), (1, 4)]) == {}
    assert list(step(driver, [(0, 1), (1, 5)])) == [1]


def test_a_prompt_is_scored_once_and_never_after_a_token(driver):
    (prompt,) = random_prompts(2, 30)
    one = params(logprobs=1, prompt_logprobs=1)
    driver.add(0, prompt, one)
    before = step(driver, [(0, 10)])[0]
    assert (before.start, len(before.prompt), len(before.output)) == (1, 10, 0)
    driver.release(0)
    driver.add(1, prompt, one)  # preempted before its first token: computed again, from the beginning
    again = step(driver, [(1, 30)])[1]
    assert (again.start, len(again.prompt), len(again.output)) == (1, 29, 1)
    for late, early in zip(again.prompt, before.prompt, strict=False):
        assert late.token == early.token
        assert late.logprob == pytest.approx(early.logprob, abs=1e-5)
    step(driver, [(1, 1)])
    driver.add(2, driver.release(1), one, prompt_length=30)  # and after it
    resumed = step(driver, [(2, 32)])[2]
    assert (len(resumed.prompt), len(resumed.output)) == (0, 1)


def test_a_slot_forgets_what_its_last_request_asked(driver):
    first, second = random_prompts(2, 5, 9)
    driver.add(0, first, params(logprobs=3, prompt_logprobs=3))
    assert step(driver, [(0, 5)])
    driver.release(0)
    driver.add(0, second, PLAIN)
    assert step(driver, [(0, 9)]) == {}


def test_the_null_models_are_those_of_its_logits(tiny_grouped):
    sizes = {"num_blocks": 128, "max_num_seqs": 16, "max_model_len": 512, "max_num_batched_tokens": 2048}
    driver = Driver(NullRunner(tiny_grouped[1], **sizes), 128)
    driver.add(0, [1, 2, 3], params(logprobs=3, temperature=0.0))
    (_, plain) = run(driver, [0], 5)[0]
    assert [entry.rank for entry in plain] == [1] * 5
    assert [entry.others[0] for entry in plain] == [(entry.token, entry.logprob) for entry in plain]
    ids = driver.release(0)
    driver.add(0, ids, params(prompt_logprobs=2, temperature=0.0))
    (scored, _) = run(driver, [0], 1)[0]
    assert [entry.logprob for entry in scored[2:]] == [entry.logprob for entry in plain], "the same ids are as likely"
    logits = np.zeros(tiny_grouped[1].vocab_size)
    logits[plain[0].token] = 10.0
    expected = logits - np.log(np.exp(logits).sum())
    shown = [(plain[0].token, plain[0].logprob), *plain[0].others]
    np.testing.assert_allclose([value for _, value in shown], expected[[token for token, _ in shown]], rtol=1e-6)
