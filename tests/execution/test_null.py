"""The null model: what its tokens depend on, and what not."""

import subprocess
import sys
import zlib

import msgspec
import pytest
from driving import Driver
from hypothesis import given, settings
from hypothesis import strategies as st
from test_batch import FIRST, WRONG, change

from actorlm.checkpoint.describe import BYTES
from actorlm.errors import ProtocolError
from actorlm.execution.null import NullRunner
from actorlm.execution.randomness import word
from actorlm.sampling import SamplingParams
from actorlm.wire import int32, read_int32

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
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.5]),
    presence_penalty=st.sampled_from([0.0, -2.0, 1.0]),
    frequency_penalty=st.sampled_from([0.0, -1.5, 2.0]),
    bad_words=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    allowed_token_ids=st.sampled_from([None, (0, *range(5, 12)), (60, 50, 60, 255)]),
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


@pytest.mark.parametrize("changes", [
    {}, {"presence_penalty": -2.0}, {"frequency_penalty": 2.0}, {"frequency_penalty": -1.5, "repetition_penalty": 1.2},
    {"presence_penalty": 2.0, "repetition_penalty": 0.5, "frequency_penalty": 0.5},
])  # fmt: skip
def test_tokens_with_penalties_are_those_of_the_definition(changes):
    allowed, prompt, output = (3, 5, 7), [1, 5], []
    for _ in range(60):
        ids = [*prompt, *output]
        hashed = allowed[word(word(0, zlib.crc32(int32(ids))), len(ids)) % 3]
        logits = {token: 10.0 if token == hashed else 0.0 for token in allowed}
        for token in set(ids) & set(allowed):
            logits[token] /= changes.get("repetition_penalty", 1.0)
            logits[token] -= changes.get("frequency_penalty", 0.0) * output.count(token)
            logits[token] -= changes.get("presence_penalty", 0.0) * (token in output)
        output.append(max(allowed, key=lambda token: (logits[token], -token)))
    params = SamplingParams(max_tokens=60, temperature=0.0, allowed_token_ids=(7, 3, 5, 3), **changes)
    assert generate(prompt, params, 60) == output


def test_repetition_looks_at_the_prompt_too():
    plain = SamplingParams(max_tokens=1, temperature=0.0, logit_bias=((5, 30.0), (6, 20.0)))
    penalized = msgspec.structs.replace(plain, repetition_penalty=2.0)
    assert generate([1, 5], plain, 1) == [5]
    assert generate([1, 5], penalized, 1) == [6]
    assert generate([1, 5], msgspec.structs.replace(plain, frequency_penalty=2.0, presence_penalty=2.0), 1) == [5]


def test_bad_words_never_stand_in_the_output():
    plain = SamplingParams(max_tokens=200, seed=4, allowed_token_ids=(1, 2, 3))
    words = ((1, 2), (3, 3), (2, 1, 3))
    ids = generate([1], plain, 200)
    held = generate([1], msgspec.structs.replace(plain, bad_words=words), 200)

    def count(wanted, among):
        return sum(tuple(among[i : i + len(wanted)]) == wanted for i in range(len(among)))

    assert all(count(one, ids) for one in words)
    assert not any(count(one, held) for one in words)


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
