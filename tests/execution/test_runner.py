"""Runner against transformers, on tiny random models."""

import driving
import msgspec
import pytest
import torch
from driving import GREEDY, Driver, make_runner, random_prompts, step_logits
from test_batch import count_calls

from actorlm.errors import ConfigError, InsufficientMemory, ModelError, ProtocolError
from actorlm.kernels.native import choose_level
from actorlm.messages.worker import RunStep
from actorlm.sampling import SamplingParams
from actorlm.wire import int32, read_int32

TOLERANCE = 1e-4
MARGIN = 1e-3


@pytest.fixture(autouse=True, params=["torch", "native"])
def kernels(request, monkeypatch):
    """Everything here holds for both."""
    if request.param == "native" and choose_level("auto") is None:
        pytest.skip("there are no compiled kernels")
    monkeypatch.setattr(driving, "KERNELS", request.param)
    return request.param


def reference_logits(model, ids):
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


def reference_generate(model, prompt, count):
    """Greedy ids, and whether any choice was too close to compare."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    best = torch.cat(out.logits).topk(2).values
    return out.sequences[0, len(prompt) :].tolist(), bool((best[:, 0] - best[:, 1]).min() < MARGIN)


@pytest.mark.parametrize("chunk", [1000, 16, 7, 1])
def test_logits_of_chunked_prompts(tiny, chunk):
    model, description = tiny
    driver = Driver(make_runner(description), 128, shuffle=3)
    prompts = random_prompts(chunk, 150, 3, 40, 16)
    for slot, prompt in enumerate(prompts):
        driver.add(slot, [*prompt, 0])  # the last id is never computed, so that no row is sampled
    parts = {slot: [] for slot in range(len(prompts))}
    while rows := [(s, min(chunk, driver.left(s) - 1)) for s in parts if driver.left(s) > 1]:
        for (slot, _), logits in zip(rows, step_logits(driver, rows), strict=True):
            parts[slot].append(logits)
    for slot, prompt in enumerate(prompts):
        torch.testing.assert_close(
            torch.cat(parts[slot]), reference_logits(model, prompt), atol=TOLERANCE, rtol=0, check_stride=False
        )


def test_logits_of_prefill_and_decode_in_one_batch(tiny):
    model, description = tiny
    driver = Driver(make_runner(description), 128, shuffle=4)
    prompts = random_prompts(9, 100, 20, 33, 5)
    for slot, prompt in enumerate(prompts):
        driver.add(slot, [*prompt, 0])
    step_logits(driver, [(0, 99), (1, 18), (2, 7)])
    rows = [(3, 5), (0, 1), (2, 26), (1, 1)]
    for (slot, count), logits in zip(rows, step_logits(driver, rows), strict=True):
        expected = reference_logits(model, prompts[slot][: driver.computed[slot]])[-count:]
        torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


def test_greedy_ids_equal_those_of_generate(tiny):
    model, description = tiny
    prompts = random_prompts(1, 1, 5, 15, 16, 17, 47, 130, 64)
    expected = [reference_generate(model, prompt, 24) for prompt in prompts]
    usable = [i for i, (_, close) in enumerate(expected) if not close]
    assert len(usable) >= 4
    prompts, wanted = [prompts[i] for i in usable], [expected[i][0] for i in usable]
    driver = Driver(make_runner(description), 128, shuffle=5)
    assert driver.generate(prompts, 24) == wanted
    assert driver.generate(prompts * 2, 24) == wanted * 2, "in blocks that others have used"
    for chunk in (16, 7):
        assert driver.generate(prompts, 24, chunk=chunk) == wanted
    assert [driver.generate([prompt], 24)[0] for prompt in prompts] == wanted


def test_a_preempted_request_goes_on_as_before(tiny_grouped):
    _, description = tiny_grouped
    driver = Driver(make_runner(description), 128, shuffle=6)
    [prompt] = random_prompts(2, 30)
    [undisturbed] = driver.generate([prompt], 20)
    driver.add(3, prompt)
    while len(driver.ids[3]) < 40:
        driver.step([(3, driver.left(3))])
    known = driver.release(3)
    driver.add(5, known, prompt_length=30)
    while len(driver.ids[5]) < 50:
        driver.step([(5, min(16, driver.left(5)))])
    assert driver.ids[5] == prompt + undisturbed


def test_a_prefix_in_the_cache_is_not_computed_again(tiny_grouped):
    _, description = tiny_grouped
    runner = make_runner(description)
    driver = Driver(runner, 128, shuffle=7)
    [prompt] = random_prompts(3, 40)
    [alone] = driver.generate([prompt], 6)
    driver.add(0, prompt)
    driver.step([(0, 40)])
    driver.add(1, prompt)
    driver.blocks[1], driver.computed[1] = driver.blocks[0][:2], 32
    plan = driver.plan([(1, 8), (0, 1)])
    shared = int32([1, 1, *read_int32(plan.block_slots)]), int32([*driver.blocks[0][:2], *read_int32(plan.block_ids)])
    done = runner.execute(msgspec.structs.replace(plan, block_slots=shared[0], block_ids=shared[1]))
    assert list(read_int32(done.tokens)) == [alone[0], alone[1]]


def test_same_seed_same_text_whatever_the_batch(tiny_grouped):
    _, description = tiny_grouped
    sampling = SamplingParams(max_tokens=100, temperature=0.9, top_p=0.9, top_k=50, seed=-5)
    [prompt] = random_prompts(4, 20)

    def sampled(others, slot):
        driver = Driver(make_runner(description), 128)
        for other in range(others):
            driver.add(other, random_prompts(other, 10)[0], msgspec.structs.replace(sampling, seed=other))
        driver.add(slot, prompt, sampling)
        for _ in range(12):
            driver.step([(s, driver.left(s)) for s in sorted(driver.ids)])
        return driver.ids[slot]

    alone = sampled(0, 0)
    assert alone == sampled(5, 9)
    assert alone != sampled(0, 0)[:20] + prompt[:12]


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.3), ("float16", 0.04), ("auto", TOLERANCE)])
def test_dtypes(tiny, dtype, tolerance):
    model, description = tiny
    driver = Driver(make_runner(description, dtype=dtype), 128)
    [prompt] = random_prompts(5, 33)
    driver.add(0, [*prompt, 0])
    step_logits(driver, [(0, 20)])
    [logits] = step_logits(driver, [(0, 13)])
    expected = reference_logits(model, prompt)[20:]
    assert logits.dtype is torch.float32
    assert (logits - expected).abs().mean() < tolerance
    assert expected.abs().mean() > 3 * tolerance, "zeros would fail"


def test_an_unknown_dtype_is_refused(tiny_grouped):
    with pytest.raises(ConfigError, match="int4"):
        make_runner(tiny_grouped[1], dtype="int4")


def test_an_unknown_architecture_is_refused(tiny_grouped):
    with pytest.raises(ModelError, match="supported: LlamaForCausalLM"):
        make_runner(msgspec.structs.replace(tiny_grouped[1], architecture="MambaForCausalLM"))


def test_too_large_a_cache_is_refused(tiny_grouped):
    with pytest.raises(InsufficientMemory, match="kv-cache-tokens"):
        make_runner(tiny_grouped[1], num_blocks=2**40)


def test_progress_ends_at_the_total(tiny_grouped, kernels):
    from actorlm.execution.runner import Runner

    runner = Runner(
        tiny_grouped[1],
        dtype="float32",
        kernels=kernels,
        num_blocks=4,
        max_num_seqs=1,
        max_model_len=64,
        max_num_batched_tokens=64,
        threads=None,
    )
    seen = []
    runner.load(lambda done, total: seen.append((done, total)))
    total = sum(p.numel() for p in tiny_grouped[0].parameters()) * 4
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_warm_up_leaves_nothing_behind(tiny_grouped):
    runner = make_runner(tiny_grouped[1])
    runner.warm_up()
    driver = Driver(runner, 128)
    assert len(driver.generate(random_prompts(6, 10), 3)[0]) == 3


def test_a_step_without_rows_and_one_without_samples(tiny_grouped):
    driver = Driver(make_runner(tiny_grouped[1]), 128)
    assert driver.step([]) == {}
    driver.add(0, random_prompts(7, 20)[0])
    assert driver.step([(0, 19)]) == {}
    assert list(driver.step([(0, 1)])) == [0]


def test_a_wrong_plan_is_refused(tiny_grouped):
    runner = make_runner(tiny_grouped[1])
    none = b""
    with pytest.raises(ProtocolError, match="slot 3"):
        runner.execute(RunStep(0, none, (), none, none, int32([3]), int32([0]), int32([1]), none))


def test_python_work_of_a_step_does_not_depend_on_its_rows(tiny_grouped):
    def calls(rows):
        driver = Driver(make_runner(tiny_grouped[1], max_num_seqs=64), 128)
        sampling = SamplingParams(max_tokens=9, temperature=1.0, top_p=0.9, min_tokens=9, logit_bias=((1, 2.0),))
        for slot in range(rows):
            driver.add(slot, [1, 2, 3], GREEDY if slot % 2 else sampling)
        driver.step([(slot, 3) for slot in range(rows)])
        plans = [driver.plan([(slot, 1) for slot in range(rows)])]
        return count_calls(lambda: driver.runner.execute(plans[0]))

    calls(4)
    assert calls(4) == calls(64)
