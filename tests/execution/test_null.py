"""The null model: what its tokens depend on, and what not."""

import subprocess
import sys

import msgspec
import pytest
from driving import Driver
from hypothesis import given, settings
from hypothesis import strategies as st
from test_batch import FIRST, WRONG, change

from actorlm.checkpoint.describe import BYTES
from actorlm.errors import ProtocolError
from actorlm.execution.null import NullRunner
from actorlm.sampling import SamplingParams
from actorlm.wire import read_int32

BLOCKS = 64


def make_runner(model=BYTES, **changes):
    sizes = {"num_blocks": BLOCKS, "max_num_seqs": 8, "max_model_len": 512, "max_num_batched_tokens": 2048}
    return NullRunner(model, **{**sizes, **changes})


def generate(prompt, sampling, count, *, chunk=1000, company=(), preempt_at=None, slot=0):
    """`count` tokens of one request; `company` are prompts of others in the batch."""
    driver = Driver(make_runner(), BLOCKS, shuffle=1)
    for other, ids in enumerate(company):
        driver.add(1 + other, ids, SamplingParams(max_tokens=9, seed=other))
    driver.add(slot, prompt, sampling)
    while len(driver.ids[slot]) < len(prompt) + count:
        if preempt_at is not None and len(driver.ids[slot]) == len(prompt) + preempt_at:
            known, preempt_at, slot = driver.release(slot), None, slot + 6
            driver.add(slot, known, sampling, len(prompt))
        driver.step([(s, min(chunk, driver.left(s))) for s in sorted(driver.ids)])
    return driver.ids[slot][len(prompt) :]


PROMPTS = st.lists(st.integers(0, 255), min_size=1, max_size=20)
SAMPLING = st.builds(
    SamplingParams,
    max_tokens=st.just(9),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(-(2**63), 2**63 - 1),
    min_tokens=st.integers(0, 9),
    logit_bias=st.lists(st.tuples(st.integers(0, 258), st.floats(-100, 100)), max_size=3).map(tuple),
)


@settings(max_examples=40, deadline=None)
@given(PROMPTS, SAMPLING, st.integers(1, 20), st.lists(PROMPTS, max_size=3), st.integers(1, 8))
def test_ids_do_not_depend_on_chunks_batches_or_preemption(prompt, sampling, chunk, company, preempt_at):
    plain = generate(prompt, sampling, 9)
    assert generate(prompt, sampling, 9, chunk=chunk, company=company, preempt_at=preempt_at) == plain


def test_ids_depend_on_seed_prompt_and_all_before():
    random, greedy = SamplingParams(max_tokens=9, seed=1), SamplingParams(max_tokens=9, temperature=0.0, seed=1)
    other = msgspec.structs.replace
    assert generate([1, 2, 3], random, 9) != generate([1, 2, 3], other(random, seed=2), 9)
    assert generate([1, 2, 3], greedy, 9) == generate([1, 2, 3], other(greedy, seed=2), 9)
    assert generate([1, 2, 3], greedy, 9) != generate([1, 2, 4], greedy, 9)
    assert generate([1, 2, 3], greedy, 9) != generate([9, 2, 3], greedy, 9)


def test_tokens_are_spread_over_the_vocabulary():
    ids = generate([1], SamplingParams(max_tokens=400, temperature=0.0), 400)
    assert len(set(ids)) > 150
    assert max(ids) < BYTES.vocab_size


def test_logit_bias_and_the_lowest_of_equals():
    [hashed] = generate([1], SamplingParams(max_tokens=1, temperature=0.0), 1)

    def biased(*bias):
        return generate([1], SamplingParams(max_tokens=1, temperature=0.0, logit_bias=bias), 1)[0]

    assert hashed not in (0, 5, 6)
    assert biased((5, 10.5)) == 5
    assert biased((5, 9.5)) == hashed
    assert biased((6, 30.0), (5, 30.0)) == 5
    assert biased((hashed, -20.0)) == 0
    assert biased((hashed, -20.0), (0, -1.0)) == 1
    assert biased((5, 6.0), (5, 6.0)) == 5


def test_min_tokens_bans_what_ends_a_generation():
    plain = SamplingParams(max_tokens=100, temperature=0.0)
    ids = generate([1], plain, 50)
    stop = ids[10]
    banned = generate([1], msgspec.structs.replace(plain, stop_token_ids=(stop,), min_tokens=30), 30)
    assert stop not in banned
    assert not set(banned) & set(BYTES.eos_token_ids)
    assert banned[:10] == ids[:10]


def test_ids_generated_before_count_as_generated():
    plain = SamplingParams(max_tokens=100, temperature=0.0)
    ids = generate([1], plain, 40)
    banning = msgspec.structs.replace(plain, stop_token_ids=(ids[20],), min_tokens=20)
    driver = Driver(make_runner(), BLOCKS)
    driver.add(0, [1, *ids[:20]], banning, prompt_length=1)
    assert driver.step([(0, 21)]) == {0: ids[20]}


@pytest.mark.parametrize("wrong", [w for name, w in WRONG.items() if name != "writes one place twice"])
def test_a_wrong_plan_is_refused(wrong):
    sizes = {"num_blocks": 8, "max_num_seqs": 4, "max_model_len": 64, "max_num_batched_tokens": 50}
    runner = make_runner(msgspec.structs.replace(BYTES, vocab_size=1000), **sizes)
    runner.execute(change(FIRST, sampled=[]))
    with pytest.raises(ProtocolError):
        runner.execute(change(**wrong))


def test_each_step_takes_its_time(monkeypatch):
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    runner = make_runner(step_ms=2.5)
    done = runner.execute(FIRST)
    assert slept == [0.0025]
    assert len(read_int32(done.tokens)) == 1
    assert done.busy_ns > 0


def test_it_loads_nothing():
    seen = []
    runner = make_runner()
    runner.load(lambda done, total: seen.append((done, total)))
    runner.warm_up()
    assert seen == [(0, 0)]


def test_it_imports_neither_torch_nor_numpy():
    code = "import sys, actorlm.execution.null; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
